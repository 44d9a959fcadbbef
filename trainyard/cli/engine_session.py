"""Record the session of the engine's processes in a file, so that they can be ended after the engine was killed.

Pulumi ends its language host and its plugins when it ends in order. If it is killed, they continue, each in its own
process group, but all in the session of the engine. A session id can be used again later, so each process also has a
mark of its engine in its environment.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local.cluster.record import Process, from_record, read_stat, stat_fields
from local.home import read_record, write_atomically

MARK = "TRAINYARD_ENGINE"
PATIENCE_SECONDS = 3.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Session:
    """The processes of one engine: the session's id and first process, and the value of `MARK` in their environment."""

    leader: Process
    mark: str

    def save(self, record: Path) -> None:
        """Write the record.

        Raises:
            OSError: It can't be written.
        """
        write_atomically(record, json.dumps({**self.leader.as_json(), "mark": self.mark}), 0o600)

    @classmethod
    def load(cls, record: Path) -> Session | None:
        """Return the recorded session; None if there is no complete record."""
        found = read_record(record) or {}
        try:
            return cls(leader=from_record(found), mark=str(found["mark"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def members(self) -> Iterator[Process]:
        """Return its processes that still run."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            fields = stat_fields(int(entry.name))
            # The fourth of these fields is the session, the twentieth the start time (proc_pid_stat(5)).
            if fields is None or fields[0] in "ZX" or int(fields[3]) != self.leader.pid:
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or belongs to somebody else
                continue
            if f"{MARK}={self.mark}".encode() in variables:
                yield Process(int(entry.name), int(fields[19]))

    def end(self) -> list[Process]:
        """End its processes, with SIGKILL if SIGTERM does not end them in `PATIENCE_SECONDS`. Return the ended
        processes.
        """
        found = list(self.members())
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + PATIENCE_SECONDS
            signalled: set[Process] = set()
            while (left := list(self.members())) and time.monotonic() < deadline:
                for process in set(left) - signalled:
                    _send(process, number)
                signalled.update(left)
                time.sleep(POLL_SECONDS)
        return found


def end_recorded(record: Path) -> list[Process]:
    """End the processes of the recorded session and remove the record. Return the ended processes."""
    session = Session.load(record)
    found = session.end() if session else []
    record.unlink(missing_ok=True)
    return found


def started(pid: int, mark: str) -> Session:
    """Return the session of a process that has just started as its first one and has not been waited for."""
    return Session(leader=Process(pid, read_stat(pid) or 0), mark=mark)


def _send(process: Process, number: int) -> None:
    """Send a signal by a descriptor of the process, so that no other process with its id gets it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.alive:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
