"""The identity of this process, its log lines, and its exit. Needs no torch.

The identity lets another process check later whether this one still runs. `leave` exits from another thread while the
main thread hangs. It takes no lock that the main thread may hold: no `print`, no flush, no shutdown of the interpreter.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from trainer.contract import Exit

# Linux alone has it.
PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """The identity of a process. Another process on the same node can check whether it still runs."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        """Return the identity of this process. Each container has its own process ids.

        Without /proc (macOS), boot and namespace are empty.
        """
        try:
            boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
            namespace = str((PROC / "self/ns/pid").readlink())
        except OSError:
            boot = namespace = ""
        state = _state(os.getpid())
        return cls(socket.gethostname(), boot, namespace, os.getpid(), state[1] if state else "")

    def is_dead(self) -> bool:
        """Return whether the process has certainly ended. False for one on another node or in another container."""
        here = Process.own()
        if not here.boot:  # the host name alone does not identify a node
            return False
        if (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return False
        return start_of(self.pid) != self.started


def start_of(pid: int) -> str | None:
    """Return when the process with this id started, in ticks since boot; None if there is none."""
    state = _state(pid)
    return None if state is None or state[0] in "ZX" else state[1]


def _state(pid: int) -> tuple[str, str] | None:
    """Return the state and the start of a process, in ticks since boot (man 5 proc); None if there is none."""
    try:
        stat = (PROC / f"{pid}/stat").read_text()
    except OSError:
        return None
    rest = stat.rpartition(")")[2].split()
    return rest[0], rest[19]


def log_line(line: str, stream: TextIO | None = None) -> None:
    """Print one line with one write, because all processes of torchrun write to the same stream."""
    print(f"{line}\n", end="", file=stream, flush=True)


def flush_output() -> None:
    """Flush stdout and stderr, also where nobody reads them any more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def resume_collection() -> None:
    """Turn the garbage collector on. It ignores the objects that exist now, because they are never freed."""
    gc.freeze()
    gc.enable()


def run_and_exit(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and exit with its code (None: 0), without the shutdown of the interpreter.

    After an import of torch, that shutdown takes a second or more, in which a signal may come. It may also abort the
    process (134): gloo's threads outlive `destroy_process_group`, and one that still holds a tensor's Python part finds
    no interpreter (https://github.com/pytorch/pytorch/pull/179291).
    """
    code = int(Exit.FAILED)
    try:
        code = main() or 0
    except SystemExit as end:
        if isinstance(end.code, int | None):
            code = end.code or 0
        else:
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush_output()
        os._exit(code)


STDERR = 2
# A log line may go to a pipe that nobody reads, and a dump to a file system that hangs.
WORK_SECONDS = 5.0


Leave = Callable[..., object]  # the type of `leave`, which tests replace


def write_stderr(line: str) -> None:
    """Write one line to stderr with one write, without Python's buffers and their locks."""
    os.write(STDERR, f"{line}\n".encode(errors="replace"))


def leave(
    code: Exit, line: str, work: Callable[[], object] | None = None, *, linger: float = 0.0
) -> NoReturn:
    """Print `line` (nothing if it is empty) and do `work`, in WORK_SECONDS at most, and exit with `code`.

    The exit comes after `linger` seconds at least. Other processes that found the same problem get this time to report
    it, because the first exit ends them.
    """
    began = time.monotonic()

    def last() -> None:
        if line:
            write_stderr(line)
        if work is not None:
            work()

    thread = threading.Thread(target=last, name="last-work", daemon=True)
    thread.start()
    thread.join(WORK_SECONDS)
    time.sleep(max(0.0, began + linger - time.monotonic()))
    os._exit(int(code))
