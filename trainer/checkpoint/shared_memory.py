"""Whether the copies of all processes of a machine fit into its /dev/shm, where background processes read them.

A container's /dev/shm is often small: 64 MiB in Docker (docs.docker.com/reference/cli/docker/container/run,
--shm-size). Who writes more than fits is killed by SIGBUS.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PLACE = Path("/dev/shm")  # noqa: S108 - it is what torch uses, not a place for files of ours
# Every tensor is a file there, and takes whole pages.
PAGE_BYTES = 4096
GIB = 2**30


@dataclass(frozen=True)
class Room:
    """What one process found: free bytes on its machine, and the bytes that all processes there need together."""

    free: int
    needed: int


def needed(sizes: Iterable[int], processes: int) -> int:
    """Bytes for a copy of tensors of these sizes in each of a machine's processes."""
    return processes * sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)


def free() -> int:
    """Bytes that are free in /dev/shm: none where there is no such place."""
    try:
        return shutil.disk_usage(PLACE).free
    except OSError:
        return 0


def too_small(rooms: Sequence[Room]) -> str | None:
    """Why not all machines have room, by the worst of them; None where they have. The same in all that ask alike."""
    worst = min(rooms, key=lambda room: room.free - room.needed)
    if worst.free >= worst.needed:
        return None
    return (
        f"{PLACE} has {worst.free / GIB:.2f} GiB free, the copies of a machine's processes need "
        f"{worst.needed / GIB:.2f} GiB: threads write, which slows the training; "
        "set training.sharedMemory (in Docker --shm-size) to more"
    )
