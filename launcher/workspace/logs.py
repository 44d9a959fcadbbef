"""The log of a worker, kept beyond its node: `archive_log` runs in the sidecar, `print_logs` in a pod that reads it.

The worker's first process copies what the worker prints into a file (launcher/core/torchrun/first_process.py). The file
stays small on disk, however much is printed: the blocks of its middle are given back, its head and tail stay.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from launcher.core.torchrun.addresses import ATTEMPT, NODE
from launcher.workspace.errors import NotThere, WorkspaceError

LOG: Final = logging.getLogger("workspace")
MEBIBYTE: Final = 2**20
# Of one worker in one attempt. What a training says at its start, and before its end, tells why it failed.
HEAD_BYTES: Final = MEBIBYTE
TAIL_BYTES: Final = 3 * MEBIBYTE
# A node that is lost at once takes the lines of this time with it.
EVERY_SECONDS: Final = 30.0
# kubelets rotate a container's log at 10 MiB and show the newest file alone (KubeletConfiguration containerLogMaxSize:
# https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
MOST_PRINTED_BYTES: Final = 8 * MEBIBYTE
_PAGE: Final = 4096
# linux/falloc.h: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, fallocate(2).
_PUNCH: Final = 0x02 | 0x01
_KEY: Final = re.compile(rf"{ATTEMPT}(\d{{1,9}})/{NODE}(\d{{1,9}})\.log")


class Objects(Protocol):
    """S3 (launcher/workspace/bucket.py)."""

    def put(self, url: str, data: bytes) -> None: ...
    def get(self, url: str) -> bytes: ...
    def names(self, url: str) -> list[str]: ...


def archive_log(
    file: Path, url: str, objects: Objects, stopping: threading.Event, *, every: float = EVERY_SECONDS
) -> None:
    """Send the log whenever it has grown, each `every` seconds, and once more when `stopping` is set.

    What goes wrong is logged once. It never stops the worker.
    """
    sent, said, ends = 0, "", False
    while not ends:
        ends = stopping.wait(every)
        try:
            size = file.stat().st_size
            if size == sent:
                continue
            objects.put(url, kept(file))
            sent, said = size, ""
            trim(file)
        except FileNotFoundError:  # the worker has not begun
            continue
        except (NotThere, WorkspaceError, OSError) as error:
            problem = f"the log is not archived: {error}"
            if problem != said:
                LOG.warning("%s", problem)
            said = problem


def kept(file: Path, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> bytes:
    """Return the log, of a long one its first and last lines, and between them how many bytes are left out."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size <= head + tail:
            return opened.read(size)
        first = opened.read(head)
        first = first[: first.rfind(b"\n") + 1] or first
        opened.seek(size - tail)
        last = opened.read(tail)
    last = last[last.find(b"\n") + 1 :] or last
    return first + _cut(size - len(first) - len(last)) + last


def _cut(size: int) -> bytes:
    return f"[... {size} bytes of this log were not kept ...]\n".encode()


def trim(file: Path, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
    """Give back the disk space of what `kept` leaves out; the writer goes on at the same offset. Raises OSError."""
    with file.open("r+b") as opened:
        begin, end = _pages(head, os.fstat(opened.fileno()).st_size - tail)
        if end > begin:
            _punch(opened, begin, end - begin)


def _pages(begin: int, end: int) -> tuple[int, int]:
    return -(-begin // _PAGE) * _PAGE, end // _PAGE * _PAGE


def _punch(file: BinaryIO, offset: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file.fileno(), _PUNCH, ctypes.c_int64(offset), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:  # such as of a file system in user space: its log stays whole
            raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class Entry:
    """One archived log."""

    attempt: int
    node: int


def entries(names: Sequence[str]) -> list[Entry]:
    """Return what the names of objects below a job's prefix stand for, in order."""
    found = (_KEY.fullmatch(each) for each in names)
    return sorted(
        (Entry(int(each[1]), int(each[2])) for each in found if each), key=lambda e: (e.attempt, e.node)
    )


def chosen(there: Sequence[Entry], attempt: str, node: int | None) -> list[Entry]:
    """Return the logs of one attempt, of one node or of all. `attempt` is its number, or "last"."""
    last = max((each.attempt for each in there if node in (None, each.node)), default=-1)
    number = int(attempt) if attempt.isdecimal() else last
    return [each for each in there if each.attempt == number and node in (None, each.node)]


def print_logs(url: str, attempt: str, node: int | None, objects: Objects, out: BinaryIO) -> None:
    """Write each of the logs that are asked for: a line of JSON with its attempt, node and size, then its bytes.

    Raises:
        NotThere: There is no such log.
        WorkspaceError: S3 refuses it.
    """
    there = entries(objects.names(url))
    wanted = chosen(there, attempt, node)
    if not wanted:
        known = ", ".join(f"attempt {each.attempt} node {each.node}" for each in there[:20]) or "none"
        raise NotThere(f"logs: {url} has no log of this attempt and node. It has {known}.")
    most = MOST_PRINTED_BYTES // len(wanted)
    for each in wanted:
        data = objects.get(f"{url}/{ATTEMPT}{each.attempt}/{NODE}{each.node}.log")
        if len(data) > most:
            data = _cut(len(data) - most) + data[-most:]
        data += b"" if not data or data.endswith(b"\n") else b"\n"
        head = {"attempt": each.attempt, "node": each.node, "bytes": len(data)}
        out.write(json.dumps(head).encode() + b"\n" + data)
        out.flush()
