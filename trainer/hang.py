"""Noticing a hang, saying where it is, and ending: in a collective, a kernel, the data or the storage.

A process that waits for another one in a collective can't tell itself, and torch's own timeouts end only collectives,
by a signal under NCCL and by an exception under gloo. So a thread watches whether the loop comes on. The timeouts of
the process groups are a little longer, for a main thread that holds the interpreter's lock.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from trainer.contract import Exit
from trainer.process import STDERR, Leave, leave, tell

POLL_SECONDS = 1.0
# What the groups' timeouts have beyond the watch's limit: it fires first, in all processes, and each says where it is.
SPARE_SECONDS = 30.0
# The processes notice a hang within about one step of each other, and the first end ends the others (torchrun, gloo).
LINGER_SECONDS = 5.0
# What torch says of its own timeouts: gloo's transport, the store, NCCL when it is waited for. Kept by tests.
_TIMED_OUT = (
    "Timed out waiting",
    "Timed out after",
    "wait timeout after",
    "Watchdog caught collective operation timeout",
)


class Stillness:
    """How long a counter stands still, by looks at it. Pure.

    The time between two looks counts `longest_gap` seconds at most: whoever could not look was stopped itself (Ctrl-Z,
    a laptop's lid, a debugger), and the counter with it.
    """

    def __init__(self, longest_gap: float) -> None:
        self._longest_gap = longest_gap
        self._count: int | None = None
        self._looked = self._still = 0.0

    def look(self, count: int, now: float) -> float:
        """Seconds since the counter was last seen at another value; `now` in seconds of a monotonic clock."""
        if count == self._count:
            self._still += min(now - self._looked, self._longest_gap)
        else:
            self._count, self._still = count, 0.0
        self._looked = now
        return self._still


class Watch:
    """Ends the process with Exit.HUNG when its loop does not come on for `limit` seconds.

    - `enter(phase)` says what the process does now and counts as coming on, as does `beat()` after each step and batch.
    - Phases that take long by nature (joining, loading, compiling, the first step, a save at the end) are entered with
      `long=True`, and have `long_limit`.
    - On a hang: one line with the phase, and every thread's stack and the flight recorders' dumps in `directory`; on
      stderr, and no dumps, where there is none or it can't be written to. `last` is done then, before the end.
    """

    def __init__(
        self,
        *,
        limit: float,
        long_limit: float,
        rank: int,
        directory: Path | None = None,
        leave: Leave = leave,
        last: Callable[[], object] = lambda: None,
    ) -> None:
        self._last = last
        self._limits = {False: limit, True: long_limit}
        self._rank, self._directory, self._leave = rank, directory, leave
        self._now = ("start", long_limit)
        self._beats = 0
        self._hung = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    @property
    def phase(self) -> str:
        """What the process does now."""
        return self._now[0]

    @property
    def hung(self) -> bool:
        """Whether a hang was found: the process is being ended, and errors that follow mean nothing."""
        return self._hung

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def enter(self, phase: str, *, long: bool = False) -> None:
        """The process begins another phase."""
        self._beats += 1  # before the limit: a long phase that ends must not be judged by the next one's
        self._now = (phase, self._limits[long])

    def beat(self) -> None:
        """The process comes on. Costs no system call."""
        self._beats += 1

    def close(self) -> None:
        """No more watching: the process ends by itself."""
        self._ended.set()

    def _watch(self) -> None:
        poll = min(POLL_SECONDS, self._limits[False] / 4)
        stillness = Stillness(2 * poll)
        while not self._ended.wait(poll):
            phase, limit = self._now
            still = stillness.look(self._beats, time.monotonic())
            if still >= limit:
                self._hung = True
                place = self._directory or "stderr"
                self._leave(
                    Exit.HUNG,
                    f"error: rank {self._rank} hung: nothing came on for {still:.0f} s in this phase: {phase}; "
                    f"stacks: {place}",
                    self._write_and_end,
                    linger=LINGER_SECONDS,
                )
                return

    def _write_and_end(self) -> None:
        write_dumps(self._directory, self._rank)
        self._last()


def prepare(directory: Path) -> None:
    """Let NCCL's own watchdog write its dumps to `directory`, too. To be called before the process groups are made.

    torch 2.15 reads the first name, and those before it the second. Raises nothing: what can't be written is told.
    """
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        os.environ.setdefault(name, str(directory / "flight_watchdog_"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        tell(f"warning: a hang can't be written down in {directory}: {error.strerror}")


def set_timeouts(limit: float, groups: tuple[dist.ProcessGroup, ...] = ()) -> None:
    """Give the default group and these others the timeout that goes with a watch of `limit` seconds.

    Long before the first step, short after it: a lost peer is noticed by a collective's timeout alone.
    """
    # Its name before torch 2.14, which the image for V100 has not.
    change = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
    for group in (None, *groups):
        change(timeout(limit), group)


def timeout(limit: float) -> timedelta:
    """The timeout of a process group that goes with a watch of `limit` seconds."""
    return timedelta(seconds=limit + SPARE_SECONDS)


def timed_out(error: BaseException) -> bool:
    """Whether torch raised this because a collective, or a wait for the other processes, took too long."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _TIMED_OUT)


def write_dumps(directory: Path | None, rank: int) -> None:
    """Every thread's stack, and what the flight recorders hold, as files that end with the rank.

    `torchfrtrace -p flight_gloo_ DIRECTORY` (or `flight_nccl_`) compares the processes' dumps. Raises nothing: what
    can't be written is told.
    """
    if directory is None:
        faulthandler.dump_traceback(STDERR)
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"stacks_{rank}").open("w") as file:
            faulthandler.dump_traceback(file)
        for name, dump in _recorded(rank):
            (directory / f"flight_{name}_{rank}").write_bytes(dump)
    except OSError as error:
        tell(f"warning: rank {rank} can't write to {directory}: {error.strerror}; its stacks follow")
        faulthandler.dump_traceback(STDERR)


def _recorded(rank: int) -> Iterator[tuple[str, bytes]]:
    """The flight recorders that hold something: gloo's, and that of whichever NCCL backend torch made.

    torch 2.15 records NCCL's collectives under the backend's name, and, with TORCH_DIST_USE_NCCL2=0, in the older
    backend's own recorder (torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend). Other versions know
    other recorders, or ask for them in other words: one that can't be asked is told, and left out.
    """
    # With them torch looks up the lines of its C++ code, for ten seconds and more; Python's are in the stacks already.
    without = {"includeStackTraces": False}
    sources: list[tuple[str, Callable[[], bytes]]] = [
        ("gloo", lambda: c10d._dump_fr_trace(backend="gloo", **without)),
        ("nccl", lambda: c10d._dump_fr_trace(backend="nccl", **without)),
    ]
    legacy = getattr(c10d, "_dump_nccl_trace", None)  # not in a torch without CUDA
    if legacy is not None:
        sources.append(("nccl-legacy", lambda: legacy(**without)))
    for name, dump in sources:
        try:
            taken = dump()
            held = pickle.loads(taken).get("entries")  # noqa: S301 - made by this process a moment ago
        except Exception as error:  # whatever it is: the process has to come to its end
            tell(
                f"warning: rank {rank}: no flight recorder of {name}: {type(error).__name__}: {_first_line(error)}"
            )
            continue
        if held:
            yield name, taken


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
