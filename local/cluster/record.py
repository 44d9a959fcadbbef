"""Record which processes run. `running` returns the supervisor of a home.

A process is identified by its id and start time, because the kernel reuses ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.home import Home, read_record


@dataclass(frozen=True)
class Process:
    """A process in this machine's /proc. `start_time` is field 22 of its stat (proc_pid_stat(5))."""

    pid: int
    start_time: int

    @property
    def alive(self) -> bool:
        """Whether this process, and not a later one with its id, still runs. A zombie does not."""
        return read_stat(self.pid) == self.start_time

    @classmethod
    def read(cls, file: Path) -> Process | None:
        """Return the process of a file with its id and start time, None if the file is missing or incomplete."""
        try:
            pid, start_time = map(int, file.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return cls(pid, start_time)

    def as_json(self) -> dict[str, int]:
        """Return the two members that records have."""
        return {"pid": self.pid, "startTime": self.start_time}


def parse_stat(line: str) -> Process:
    """Return the process of a line of /proc/<pid>/stat. The name in parentheses may contain any characters."""
    return Process(int(line.split()[0]), int(_after_name(line)[19]))


def _after_name(line: str) -> list[str]:
    return line.rpartition(")")[2].split()


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the third on, the state; None if there is no such process."""
    try:
        # A program's name can contain any bytes, and is cut after the 15th.
        return _after_name(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_stat(pid: int) -> int | None:
    """Return the start time of a running process, or None."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def from_record(record: Mapping[str, Any]) -> Process:
    return Process(int(record["pid"]), int(record["startTime"]))


def recorded(home: Home) -> Process | None:
    """Return the supervisor that the home's record names, running or not."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):  # missing or damaged
        return from_record(read_record(home.supervisor_file) or {})
    return None


def running(home: Home) -> Process | None:
    """Return the running supervisor of this home, or None."""
    process = recorded(home)
    return process if process is not None and process.alive else None


def remove_records(home: Home) -> None:
    """Remove the records of a cloud that has ended."""
    for file in (home.cloud_file, home.supervisor_file, home.aws_file, home.control_socket):
        file.unlink(missing_ok=True)
