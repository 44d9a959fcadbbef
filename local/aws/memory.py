"""Keeps the emulator's memory to what the account holds now.

Three things made it grow for ever, most of all with the bytes of S3 objects:

- moto keeps every object that it ever made for the pages of its dashboard (`instances_tracked`, moto/core/
  common_models.py): each deleted object, message and session. The dashboard is closed here.
- Requests and objects refer to each other in circles. Python frees these when the number of objects has grown by a
  quarter, whatever their size (github.com/python/cpython, InternalDocs/garbage_collector.md).
- Each connection has a thread. glibc gives threads up to eight heaps per core, and keeps what was freed in the middle
  of one (mallopt(3)).
"""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any

from moto.core.common_models import BaseModel

COLLECT_AFTER_BYTES = 32 * 2**20
# mallopt(3). Blocks from the threshold on are given back as soon as they are freed.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
SETTINGS = {ARENA_MAX: 2, MMAP_THRESHOLD: 256 * 1024, TRIM_THRESHOLD: 4 * 2**20}


def install() -> None:
    """Let models be made without a record of them."""

    def make(cls: Any, *_args: Any, **_kwargs: Any) -> Any:
        return object.__new__(cls)

    BaseModel.__new__ = make


def use_few_heaps() -> None:
    """Set how this process allocates; a C library that has no mallopt keeps its own way."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in SETTINGS.items():
            library.mallopt(parameter, value)


class Collector:
    """Frees circles once so many bytes came and went; safe for many threads."""

    def __init__(self, limit: int = COLLECT_AFTER_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count the bytes of a request or an answer."""
        with self._lock:
            self._bytes += size

    def collect_if_due(self) -> None:
        """Collect if enough was counted since the last time: a few milliseconds after `settle`."""
        with self._lock:
            due = self._bytes >= self._limit
            if due:
                self._bytes = 0
        if due:
            gc.collect()

    @staticmethod
    def settle() -> None:
        """What is there now stays: it is not looked at again."""
        gc.collect()
        gc.freeze()
