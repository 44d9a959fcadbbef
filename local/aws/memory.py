"""Limit the emulator's memory to the present content of the account.

Without this module, memory grows without limit, mostly with the bytes of S3 objects. There are three causes:

- For its dashboard, moto keeps each object that it ever created, also deleted ones (`instances_tracked`,
  moto/core/common_models.py). The dashboard is closed here, so `install` turns this off.
- Requests and objects form reference cycles. Python collects cycles when the number of objects has grown by a quarter,
  whatever their size (github.com/python/cpython, InternalDocs/garbage_collector.md). `Collector` counts bytes instead.
- Each connection has a thread. glibc creates up to eight arenas per core for threads, and does not return free memory
  in the middle of an arena (mallopt(3)). `use_few_heaps` limits their number.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any

from moto.core.common_models import BaseModel

COLLECT_AFTER_BYTES = 32 * 2**20
# mallopt(3). Blocks of at least MMAP_THRESHOLD bytes return to the system when they are freed.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
SETTINGS = {ARENA_MAX: 2, MMAP_THRESHOLD: 256 * 1024, TRIM_THRESHOLD: 4 * 2**20}


def install() -> None:
    """Make moto create models without keeping a list of them."""

    def make(cls: Any, *_args: Any, **_kwargs: Any) -> Any:
        return object.__new__(cls)

    BaseModel.__new__ = make


def use_few_heaps() -> None:
    """Configure the allocator of this process, if the C library has mallopt."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in SETTINGS.items():
            library.mallopt(parameter, value)


class Collector:
    """Run the garbage collector after each `limit` transferred bytes. Thread-safe."""

    def __init__(self, limit: int = COLLECT_AFTER_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count the bytes of a request or response."""
        with self._lock:
            self._bytes += size

    def collect_if_due(self) -> None:
        """Collect if the limit was reached since the last collection. After `settle` this takes a few milliseconds."""
        with self._lock:
            due = self._bytes >= self._limit
            if due:
                self._bytes = 0
        if due:
            gc.collect()

    @staticmethod
    def settle() -> None:
        """Exclude all present objects from later collections."""
        gc.collect()
        gc.freeze()
