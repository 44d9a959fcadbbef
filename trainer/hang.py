"""End a process that hangs: in a collective, a kernel, the data or the storage. The entry point is `Watch`.

A process that waits in a collective can't detect this itself, and torch's timeouts only end collectives: by a signal
under NCCL, by an exception under gloo. So a thread checks that the loop makes progress. The timeouts of the process
groups are a little longer. They end a main thread that holds the interpreter's lock.
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
from trainer.process import STDERR, Leave, leave, write_stderr

POLL_SECONDS = 1.0
# The timeouts of the groups are longer than the limit of the watch, so that the watch reports first, in all processes.
SPARE_SECONDS = 30.0
# The processes detect a hang within about one step of each other. The first that ends also ends the others.
LINGER_SECONDS = 5.0
# Messages of torch's timeouts: of gloo's transport, the store, and NCCL. Tests check them.
_TIMED_OUT = (
    "Timed out waiting",
    "Timed out after",
    "wait timeout after",
    "Watchdog caught collective operation timeout",
)


class Watch:
    """End the process with Exit.HUNG if its loop makes no progress for too long.

    `enter(phase)` and `beat()`, after each step and batch, count as progress. On a hang, the watch prints one line with
    the phase, and writes the stacks of all threads and the dumps of the flight recorders. Without a writable directory,
    the stacks go to stderr. `last` is called before the end.

    `limit` is the number of seconds without progress that count as a hang. `long_limit` is the same in phases with
    `long=True`: joining, loading, compiling, the first step, the last save. Once `hung` is True, the process is about
    to end, and later errors are consequences.
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
        self.hung = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    @property
    def phase(self) -> str:
        """What the process does now."""
        return self._now[0]

    def start(self) -> None:
        self._thread.start()

    def enter(self, phase: str, *, long: bool = False) -> None:
        self._beats += 1  # before the limit, which does not hold for the time of the phase before
        self._now = (phase, self._limits[long])

    def beat(self) -> None:
        """Report progress. This makes no system call."""
        self._beats += 1

    def close(self) -> None:
        """Stop the thread, because the process ends normally."""
        self._ended.set()

    def _watch(self) -> None:
        poll = min(POLL_SECONDS, self._limits[False] / 4)
        beats, still, polled = self._beats, 0.0, time.monotonic()
        while not self._ended.wait(poll):
            phase, limit = self._now
            now = time.monotonic()
            # A busy machine polls late. After a longer gap, this process was stopped (Ctrl-Z, a debugger).
            passed, polled = min(now - polled, 2 * poll), now
            beats, still = self._beats, still + passed if beats == self._beats else 0.0
            if still >= limit:
                self.hung = True
                place = self._directory or "stderr"
                self._leave(
                    Exit.HUNG,
                    f"error: rank {self._rank} hung: no progress for {still:.0f} s in this phase: {phase}; "
                    f"stacks: {place}",
                    self._write_and_end,
                    linger=LINGER_SECONDS,
                )
                return

    def _write_and_end(self) -> None:
        write_dumps(self._directory, self._rank)
        self._last()


def set_dump_directory(directory: Path) -> None:
    """Let NCCL's watchdog also write its dumps to `directory`. Call this before the process groups are created.

    torch 2.15 reads the first variable, older versions the second. An error is only printed.
    """
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        os.environ.setdefault(name, str(directory / "flight_watchdog_"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        write_stderr(f"warning: stacks of a hang can't be written to {directory}: {error.strerror}")


def set_timeouts(limit: float, groups: tuple[dist.ProcessGroup, ...] = ()) -> None:
    """Set the timeout of the default group and of `groups` that belongs to a watch limit of `limit` seconds.

    It is short after the first step, because only the timeout of a collective detects a lost peer.
    """
    # The image for V100 has a torch older than 2.14, with the private name.
    change = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
    for group in (None, *groups):
        change(timeout(limit), group)


def timeout(limit: float) -> timedelta:
    """Return the timeout of a process group that belongs to a watch limit of `limit` seconds."""
    return timedelta(seconds=limit + SPARE_SECONDS)


def timed_out(error: BaseException) -> bool:
    """Return whether `error` is a timeout of a collective or of a wait for the other processes."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _TIMED_OUT)


def write_dumps(directory: Path | None, rank: int) -> None:
    """Write the stacks of all threads and the dumps of the flight recorders, in files that end with the rank.

    `torchfrtrace -p flight_gloo_ DIRECTORY` (or `flight_nccl_`) compares the dumps of the processes. An error is only
    printed.
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
        write_stderr(f"warning: rank {rank} can't write to {directory}: {error.strerror}; its stacks follow")
        faulthandler.dump_traceback(STDERR)


def _recorded(rank: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the dump of each flight recorder that is not empty.

    torch 2.15 records NCCL's collectives under the name of the backend, and, with TORCH_DIST_USE_NCCL2=0, in the
    recorder of the older backend (torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend). Other
    versions have other recorders or arguments; a recorder that fails is reported and skipped.
    """
    # With stack traces, torch looks up the lines of its C++ code, for ten seconds or more. The Python stacks are there.
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
            data = dump()
            entries = pickle.loads(data).get("entries")  # noqa: S301 - this process has just created it
        except Exception as error:  # no error may stop the end of this process
            reason = str(error).partition("\n")[0]
            write_stderr(
                f"warning: rank {rank}: no flight recorder of {name}: {type(error).__name__}: {reason}"
            )
            continue
        if entries:
            yield name, data
