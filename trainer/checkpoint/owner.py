"""Own a place for checkpoints, so that two jobs never write to the same place. Needs no torch.

A claim is an object `owners/<generation>.json`; the highest generation counts. A takeover creates the next generation.
"Create if absent" is atomic in a directory and in S3, so one of several concurrent takeovers wins. The owner rewrites
its claim every RENEW_SECONDS. The clocks of two nodes are never compared: a claim is abandoned if it does not change in
ABANDONED_SECONDS of the clock of the process that waits for it. For a claim of the same run, whose older processes
should be gone, SAME_RUN_SECONDS are enough. The entry point is `Owner`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from trainer.contract import Exit, TrainerError
from trainer.process import Process
from trainer.stores import MissingError, Store, StoreError

FOLDER = "owners/"
CLAIM = re.compile(r"owners/([0-9]{6})\.json")
RENEW_SECONDS, ABANDONED_SECONDS, POLL_SECONDS = 10.0, 30.0, 2.0
# One renewal and some time to write it. A live run changes its claim in this time.
SAME_RUN_SECONDS = 15.0
# Maximum number of tries of a takeover. A try fails if another process is faster.
TRIES = 10


@dataclass(frozen=True)
class Claim:
    """The content of a claim. A restart of the same run has the same `token`."""

    token: str
    run_id: str
    process: Process
    renewed_at: str
    released: bool = False

    def encode(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def decode(cls, body: bytes) -> Claim | None:
        """Parse a claim. Return None for an invalid one, which is treated as a claim of an unknown job."""
        try:
            document = json.loads(body)
            return cls(**{**document, "process": Process(**document["process"])})
        except (KeyError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        process = self.process
        return f"run {self.run_id} (process {process.pid} on {process.host}, last seen {self.renewed_at})"


class Owner:
    """The ownership of a store by rank 0: `claim()`, then `start()` renews it in a thread until `release()`.

    Attributes:
        generation: The generation of the own claim, 0 before `claim()`.
        takeover: Who took over the place, as a sentence; empty if nobody did. Nothing may be written after a takeover.
    """

    def __init__(
        self,
        store: Store,
        token: str,
        run_id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        log_line: Callable[[str], None] = print,
    ) -> None:
        self._store, self._clock, self._sleep, self._log_line = store, clock, sleep, log_line
        self._claim = Claim(token, run_id, Process.own(), "")
        self.generation = 0
        self.takeover, self._failing = "", False
        self._renewal = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self) -> None:
        """Become the owner: at once, or after about SAME_RUN_SECONDS or ABANDONED_SECONDS.

        Raises:
            TrainerError: There is a live owner; the message names it.
            StoreError: The store failed.
        """
        for _ in range(TRIES):
            newest = newest_generation(self._store)
            if newest and not self._may_follow(newest):
                continue
            if self._take(newest + 1):
                self.generation = newest + 1
                with suppress(StoreError):
                    self._store.delete([_path(newest)])
                return
        raise StoreError(f"cannot claim {self._store.uri('')}: others were faster {TRIES} times")

    def start(self) -> None:
        """Start the thread that renews the claim."""
        self._thread = threading.Thread(target=self._renew_always, name="checkpoint owner", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Rewrite the claim, or find a takeover. If the store fails, the next renewal tries again.

        Any thread may call this. A claim that somebody deleted is written again.
        """
        with self._renewal:
            if self.takeover:
                return
            try:
                newest = newest_generation(self._store)
                if newest in (0, self.generation):
                    self._store.put(_path(self.generation), self._now().encode(), "application/json")
                else:
                    claim = Claim.decode(self._read(newest) or b"")
                    self.takeover = f"{self._store.uri('')} was taken over by {claim or 'another job'}"
                    self._log_line(f"alarm=checkpoint owner=lost reason={self.takeover}")
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    self._log_line(f"alarm=checkpoint owner=unrenewed reason={error}")
                self._failing = True

    def release(self) -> None:
        """Stop to renew, and mark the claim as released, so that the next run need not wait. Ignore failures."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(StoreError):
            if self.generation and newest_generation(self._store) == self.generation:
                self._store.put(_path(self.generation), replace(self._now(), released=True).encode())

    def _may_follow(self, generation: int) -> bool:
        """Wait until it is known whether a takeover may follow this claim.

        Returns:
            True if the claim is released, abandoned or our own. False if there is a newer one.

        Raises:
            TrainerError: The owner is alive.
        """
        body = self._read(generation)
        if body is None:
            return False
        claim = Claim.decode(body)
        own = self._claim.process
        # Without a boot id, another process may look the same as this one.
        is_own = claim is not None and bool(own.boot) and claim.process == own
        if claim and (claim.released or is_own or claim.process.is_dead()):
            return True
        is_same_run = claim is not None and claim.token == self._claim.token
        until = self._clock() + (SAME_RUN_SECONDS if is_same_run else ABANDONED_SECONDS)
        while self._clock() < until:
            self._sleep(POLL_SECONDS)
            now = self._read(generation)
            if now is None or newest_generation(self._store) != generation:
                return False
            if now != body:
                current = Claim.decode(now) or claim
                if current and current.released:
                    return True
                advice = "use another run id or owner" if is_same_run else "use another place for this run"
                raise TrainerError(
                    Exit.CONFIGURATION,
                    f"checkpoints: {self._store.uri('')} belongs to {current or 'another job'}, which is alive. "
                    f"End that run, or {advice}",
                )
        return True

    def _take(self, generation: int) -> bool:
        if self._store.put_if_absent(_path(generation), self._now().encode()):
            return True
        # The response of the store may have been lost, so the claim may be our own.
        body = self._read(generation)
        claim = Claim.decode(body) if body else None
        own = self._claim
        return claim is not None and (claim.token, claim.process) == (own.token, own.process)

    def _read(self, generation: int) -> bytes | None:
        try:
            return self._store.read(_path(generation))
        except MissingError:
            return None

    def _now(self) -> Claim:
        return replace(self._claim, renewed_at=datetime.now(UTC).isoformat(timespec="seconds"))

    def _renew_always(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            self.renew()


def _path(generation: int) -> str:
    return f"{FOLDER}{generation:06}.json"


def newest_generation(store: Store) -> int:
    """Return the generation of the current owner, 0 without any. Raise StoreError."""
    found = (CLAIM.fullmatch(path) for path in store.list(FOLDER))
    return max((int(each[1]) for each in found if each), default=0)
