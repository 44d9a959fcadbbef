"""Archive a worker's log in the bucket: `archive_log` runs in the sidecar, `print_logs` in the pod of the reader.

The worker's first process copies the worker's output to a file (trainyard/operator/signal_forwarder.py). The file
keeps its head and tail on disk; `trim` frees the blocks between them.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import BinaryIO, Final

from trainyard.operator.names import ATTEMPT, NODE
from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import NotThere, WorkspaceError

LOG: Final = logging.getLogger("workspace")
MEBIBYTE: Final = 2**20
# Limits of one log. The cause of a failure is usually in the first or last lines.
HEAD_BYTES: Final = MEBIBYTE
TAIL_BYTES: Final = 3 * MEBIBYTE
# The limit for a read from the bucket, where any worker of the namespace may write larger objects.
_MAX_OBJECT_BYTES: Final = HEAD_BYTES + TAIL_BYTES + 1024
# If a node disappears, the lines of this interval are lost.
EVERY_SECONDS: Final = 30.0
# A kubelet rotates a container's log at 10 MiB and serves only the newest file (containerLogMaxSize:
# https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
MAX_PRINTED_BYTES: Final = 8 * MEBIBYTE
_PAGE: Final = 4096
# linux/falloc.h: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, fallocate(2).
_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01
_KEY: Final = re.compile(rf"{ATTEMPT}(\d{{1,9}})/{NODE}(\d{{1,9}})\.log")


def archive_log(
    file: Path, url: str, bucket: Bucket, stopping: threading.Event, *, every: float = EVERY_SECONDS
) -> None:
    """Upload the log every `every` seconds if it has grown, and a last time when `stopping` is set.

    A repeated error is logged once. Errors never stop the worker.
    """
    sent, reported, is_last = 0, "", False
    while not is_last:
        is_last = stopping.wait(every)
        try:
            size = file.stat().st_size
            if size == sent:
                continue
            bucket.put(url, read_log(file))
            sent, reported = size, ""
            trim(file)
        except FileNotFoundError:  # the worker has not started yet
            continue
        except (NotThere, WorkspaceError, OSError) as error:
            problem = f"the log is not archived: {error}"
            if problem != reported:
                LOG.warning("%s", problem)
            reported = problem


def read_log(file: Path, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> bytes:
    """Return the log. Of a long log, return its first and last lines, with a line about the missing bytes between."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size <= head + tail:
            return opened.read(size)
        first = opened.read(head)
        first = first[: first.rfind(b"\n") + 1] or first
        opened.seek(size - tail)
        last = opened.read(tail)
    last = last[last.find(b"\n") + 1 :] or last
    return first + _gap_line(size - len(first) - len(last)) + last


def _gap_line(size: int) -> bytes:
    return f"[... {size} bytes of this log are missing ...]\n".encode()


def trim(file: Path, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
    """Free the disk space of the bytes that `read_log` leaves out. The writer's offset stays valid.

    Raises:
        OSError: The file can't be changed.
    """
    with file.open("r+b") as opened:
        end = (os.fstat(opened.fileno()).st_size - tail) // _PAGE * _PAGE
        begin = -(-head // _PAGE) * _PAGE
        if end > begin:
            _punch_hole(opened, begin, end - begin)


def _punch_hole(file: BinaryIO, offset: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:  # the file system can't free blocks; the log stays complete
            raise OSError(number, os.strerror(number))


def print_logs(url: str, attempt: str, node: int | None, bucket: Bucket, out: BinaryIO) -> None:
    """Write each requested log: a line of JSON with its attempt, node and size, then its bytes.

    Args:
        attempt: A number, or "last".
        node: Its number, None for all.

    Raises:
        NotThere: There is no such log.
        WorkspaceError: S3 refuses the request.
    """
    archived = sorted((int(key[1]), int(key[2])) for key in map(_KEY.fullmatch, bucket.names(url)) if key)
    of_node = [key for key in archived if node in (None, key[1])]
    chosen = int(attempt) if attempt.isdecimal() else max(of_node, default=(-1, 0))[0]
    selected = [key for key in of_node if key[0] == chosen]
    if not selected:
        known = ", ".join(f"attempt {number} node {rank}" for number, rank in archived[:20]) or "none"
        raise NotThere(f"logs: {url} has no log of this attempt and node. It has {known}.")
    limit = MAX_PRINTED_BYTES // len(selected)
    for number, rank in selected:
        data = bucket.get(f"{url}/{ATTEMPT}{number}/{NODE}{rank}.log", _MAX_OBJECT_BYTES)
        if len(data) > limit:
            data = _gap_line(len(data) - limit) + data[-limit:]
        data += b"" if not data or data.endswith(b"\n") else b"\n"
        header = {"attempt": number, "node": rank, "bytes": len(data)}
        out.write(json.dumps(header).encode() + b"\n" + data)
        out.flush()
