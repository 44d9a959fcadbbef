"""Whose checkpoints these are: a marker in the store that keeps two jobs from writing into one place. Needs no torch.

A claim is an object `owners/<generation>.json`; the highest generation counts. Who takes over makes the next one, and
"make unless it is there" is one step in a directory as in S3, so of several that try at once one wins. The owner writes
its claim anew every RENEW_SECONDS. Nobody compares the clocks of two machines: a claim is abandoned when the one who
watches it sees no change through ABANDONED_SECONDS of its own clock; of the same run, whose older processes should be
gone, through SAME_RUN_SECONDS.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime

from trainer.contract import Exit, TrainerError
from trainer.process import Process
from trainer.stores import Store, StoreError

FOLDER = "owners/"
CLAIM = re.compile(r"owners/([0-9]{6})\.json")
RENEW_SECONDS, ABANDONED_SECONDS, LOOK_SECONDS = 10.0, 30.0, 2.0
# One renewal and some time to write it: a training that lives shows within it.
SAME_RUN_SECONDS = 15.0
# Taking over is tried anew when another was faster; after so many times something else is wrong.
TRIES = 10


@dataclass(frozen=True)
class Claim:
    """What a marker says. `token` is the run's: a restart of the same run has the same one."""

    token: str
    run_id: str
    process: Process
    renewed_at: str
    released: bool = False

    def encode(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def decode(cls, body: bytes) -> Claim | None:
        """None for what is no claim: such a marker is waited for as for any other, and then taken over."""
        try:
            said = json.loads(body)
            process = Process(**{each.name: said["process"][each.name] for each in fields(Process)})
            return cls(
                str(said["token"]),
                str(said["run_id"]),
                process,
                str(said["renewed_at"]),
                said["released"] is True,
            )
        except (KeyError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        process = self.process
        return f"run {self.run_id} (process {process.pid} on {process.host}, last seen {self.renewed_at})"


@dataclass(frozen=True)
class Held:
    """A claim that was won. Small and plain: it goes to whoever is about to finish a checkpoint."""

    generation: int

    def is_newest(self, store: Store) -> bool:
        """Whether nobody took over since. Raises StoreError."""
        return _newest(store) == self.generation


class Owner:
    """Rank 0's hold on the store: `claim()`, then renewed by a thread until `release()`."""

    def __init__(
        self,
        store: Store,
        token: str,
        run_id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = print,
    ) -> None:
        self._store, self._clock, self._sleep, self._say = store, clock, sleep, say
        self._claim = Claim(token, run_id, Process.own(), "")
        self._held: Held | None = None
        self._lost = self._failing = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> Held:
        """What `claim()` won."""
        if self._held is None:
            raise RuntimeError("claim() comes first")
        return self._held

    @property
    def lost(self) -> bool:
        """Whether a renewal found that another has taken over; then nothing may be written any more."""
        return self._lost

    def claim(self) -> None:
        """Become the owner: at once, or within about SAME_RUN_SECONDS or ABANDONED_SECONDS.

        Raises TrainerError that names a living owner, and StoreError when the store fails.
        """
        for _ in range(TRIES):
            newest = _newest(self._store)
            if newest and not self._may_follow(newest):
                continue
            if self._take(newest + 1):
                self._held = Held(newest + 1)
                self._delete_older()
                return
        raise StoreError(f"cannot claim {self._store.uri('')}: others were faster {TRIES} times", "failed")

    def start(self) -> None:
        """Begin to renew, in a thread."""
        self._thread = threading.Thread(target=self._renew_always, name="checkpoint owner", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Write the claim anew, or find that it is lost. A store that fails now may work the next time."""
        if self._lost:
            return
        try:
            if self.held.is_newest(self._store):
                self._store.put(_path(self.held.generation), self._now().encode(), "application/json")
            else:
                self._lost = True
                place = self._store.uri("")
                self._say(
                    f"alarm=checkpoint owner=lost reason={place} was taken over; nothing is saved any more"
                )
            self._failing = False
        except StoreError as error:
            if not self._failing:
                self._say(f"alarm=checkpoint owner=unrenewed reason={error}")
            self._failing = True

    def release(self) -> None:
        """Stop renewing and say so in the marker, so that the next run need not wait. A failure is no matter."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._held is None or self._lost:
            return
        with suppress(StoreError):
            if self._held.is_newest(self._store):
                self._store.put(_path(self._held.generation), replace(self._now(), released=True).encode())

    def _may_follow(self, generation: int) -> bool:
        """Whether this claim is ours or nobody's; False when there is another one to look at."""
        body = self._read(generation)
        if body is None:
            return False
        claim = Claim.decode(body)
        if claim and (claim.released or self._is_own(claim.process) or claim.process.is_dead()):
            return True
        is_same_run = claim is not None and claim.token == self._claim.token
        until = self._clock() + (SAME_RUN_SECONDS if is_same_run else ABANDONED_SECONDS)
        while self._clock() < until:
            self._sleep(LOOK_SECONDS)
            now = self._read(generation)
            if now is None or _newest(self._store) != generation:
                return False
            if now != body:
                told = Claim.decode(now) or claim
                if told and told.released:
                    return True
                wanted = (
                    "another run id or owner for a second training: end the first, or name this one otherwise"
                    if is_same_run
                    else "a place of this run's own: end that run, or name another place"
                )
                raise TrainerError(
                    Exit.CONFIGURATION,
                    f"checkpoints: {self._store.uri('')} belongs to {told or 'another job'}, which is alive; "
                    f"expected {wanted}",
                )
        return True

    def _is_own(self, process: Process) -> bool:
        """Whether this very process claimed before; without a boot id another one may look the same."""
        return bool(process.boot) and process == self._claim.process

    def _take(self, generation: int) -> bool:
        if self._store.put_if_absent(_path(generation), self._now().encode()):
            return True
        # An answer of the store may have been lost, and the claim there be our own.
        body = self._read(generation)
        claim = Claim.decode(body) if body else None
        own = self._claim
        return claim is not None and (claim.token, claim.process) == (own.token, own.process)

    def _read(self, generation: int) -> bytes | None:
        try:
            return self._store.read(_path(generation))
        except StoreError as error:
            if error.why == "missing":
                return None
            raise

    def _delete_older(self) -> None:
        with suppress(StoreError):
            found = [path for path in self._store.list(FOLDER) if CLAIM.fullmatch(path)]
            self._store.delete(path for path in found if path < _path(self.held.generation))

    def _now(self) -> Claim:
        return replace(self._claim, renewed_at=datetime.now(UTC).isoformat(timespec="seconds"))

    def _renew_always(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            self.renew()


def _path(generation: int) -> str:
    return f"{FOLDER}{generation:06}.json"


def _newest(store: Store) -> int:
    """The highest generation, 0 where there is none."""
    found = (CLAIM.fullmatch(path) for path in store.list(FOLDER))
    return max((int(each[1]) for each in found if each), default=0)
