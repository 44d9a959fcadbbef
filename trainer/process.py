"""The identity of this process, its log lines, and its exit. Needs no torch.

The identity lets another process check later whether this one still runs. `leave` exits from another thread while the
main thread hangs. It takes no lock that the main thread may hold: no `print`, no flush, no shutdown of the interpreter.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol, TextIO

from trainer.contract import Exit

# Linux alone has it.
PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process, so that another one on the same machine can tell whether it still runs."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Process:
        """This one. Of the pid alone nothing follows: each container counts its own.

        Where there is no /proc (macOS), boot and namespace are empty.
        """
        try:
            boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
            namespace = str((PROC / "self/ns/pid").readlink())
        except OSError:
            boot = namespace = ""
        state = _state(os.getpid())
        return cls(socket.gethostname(), boot, namespace, os.getpid(), state[1] if state else "")

    def is_dead(self) -> bool:
        """Whether it is known to have ended: False for whatever cannot be seen from here."""
        here = Process.own()
        if not here.boot:  # then a name alone would say which machine this is, and two may have the same
            return False
        if (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return False
        return start_of(self.pid) != self.started


def start_of(pid: int) -> str | None:
    """When the process that has this number now was started, in ticks since boot; None where none runs."""
    state = _state(pid)
    return None if state is None or state[0] in "ZX" else state[1]


def _state(pid: int) -> tuple[str, str] | None:
    """A process's state and when it started, in ticks since boot (man 5 proc); None where there is none."""
    try:
        stat = (PROC / f"{pid}/stat").read_text()
    except OSError:
        return None
    rest = stat.rpartition(")")[2].split()
    return rest[0], rest[19]


def say(line: str, stream: TextIO | None = None) -> None:
    """One line, at once, and in one piece: torchrun's processes write unbuffered into one stream."""
    print(f"{line}\n", end="", file=stream, flush=True)


STDERR = 2
# A line of log or a dump may go to a pipe that nobody reads, or to a file system that hangs.
WORK_SECONDS = 5.0


class Leave(Protocol):
    """`leave`, or what stands for it in a test."""

    def __call__(
        self, code: Exit, line: str, work: Callable[[], object] | None = None, *, linger: float = 0.0
    ) -> object: ...


def tell(line: str) -> None:
    """One line on stderr, in one piece, past Python's buffers and their locks."""
    os.write(STDERR, f"{line}\n".encode(errors="replace"))


def leave(
    code: Exit, line: str, work: Callable[[], object] | None = None, *, linger: float = 0.0
) -> NoReturn:
    """Say `line` (nothing when it is empty), do `work`, and end the process with `code`.

    Line and work get WORK_SECONDS together and no more. The end comes `linger` seconds after the call at the soonest,
    for other processes that notice the same thing and are ended as soon as this one is gone.
    """
    began = time.monotonic()

    def last() -> None:
        if line:
            tell(line)
        if work is not None:
            work()

    thread = threading.Thread(target=last, name="last-work", daemon=True)
    thread.start()
    thread.join(WORK_SECONDS)
    time.sleep(max(0.0, began + linger - time.monotonic()))
    os._exit(int(code))
