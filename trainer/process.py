"""Which process this is, so that another one can tell later whether it still runs. Needs no torch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

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
