"""Measure memory and CPU time of all processes in this PID namespace."""

from __future__ import annotations

import os
from dataclasses import dataclass

from local.cluster.record import stat_fields

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resident memory in bytes and CPU time in seconds since the start of the process."""

    rss_bytes: int
    cpu_seconds: float
    parent: int


def usage(pid: int) -> Usage | None:
    """Return the usage of one process, None if it has ended (proc_pid_stat(5): fields 4, 14, 15, 24)."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    return Usage(
        rss_bytes=int(fields[21]) * PAGE,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS,
        parent=int(fields[1]),
    )


def everything() -> dict[int, Usage]:
    """Return the usage of all processes that this process can see, by id."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return {pid: found for pid in pids if (found := usage(pid)) is not None}


def descendants(*roots: int) -> list[int]:
    """Return the children of processes, their children and so on."""
    children: dict[int, list[int]] = {}
    for pid, each in everything().items():
        children.setdefault(each.parent, []).append(pid)
    found: dict[int, None] = {}
    pending = list(roots)
    while pending:
        below = [each for each in children.get(pending.pop(), []) if each not in found]
        found.update(dict.fromkeys(below))
        pending += below
    return list(found)
