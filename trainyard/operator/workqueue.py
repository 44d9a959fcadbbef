"""A work queue with delays and retries, like that of client-go. Each key has at most one worker at a time."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

# The pauses after a failure, in seconds. They double.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
_FEW = 64

logger = logging.getLogger(__name__)


class RetryLater(Exception):
    """The key can't be processed now. `seconds` is the pause that the API server asked for, else 0."""

    def __init__(self, why: str, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass
class _Entry:
    due: float | None = None  # None: not requested
    running: bool = False
    failures: int = 0
    not_before: float = 0.0  # the end of the pause after its last failure


class WorkQueue(Generic[Key]):
    """Call `process` for each added key, with a limited number of workers.

    `process` returns the seconds until the key is due again, None for never. Additions before a call starts count once,
    and an addition during a call starts another call. A failed key is retried after a pause and delays no other key.
    Call all methods in the event loop's thread.
    """

    def __init__(
        self,
        process: Callable[[Key], Awaitable[float | None]],
        workers: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._workers = workers
        self._clock = clock
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys that are due or in a call. Any thread may call this."""
        now = self._clock()
        return sum(
            each.running or (each.due is not None and each.due <= now) for each in [*self._entries.values()]
        )

    def add(self, key: Key, after: float = 0.0) -> None:
        """Process the key after a delay in seconds, or sooner if already due, but not in a pause after a failure."""
        entry = self._entries.setdefault(key, _Entry())
        due = max(self._clock() + after, entry.not_before)
        if entry.due is not None and entry.due <= due:
            return
        entry.due = due
        if not entry.running:
            self._push(due, key)

    async def run(self) -> None:
        """Process keys until the task is cancelled. Running calls are cancelled as well."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            entry = self._entries[key]
            entry.due, entry.running = None, True
            try:
                again = await self._process(key)
                entry.failures = 0
            except Exception as error:
                again = self._failed(key, entry, error)
                entry.not_before = self._clock() + again
                entry.due = None  # requests from the meantime wait for the end of the pause as well
            if again is not None:
                self.add(key, again)
            entry.running = False
            if entry.due is None:
                del self._entries[key]
            else:
                self._push(entry.due, key)

    def _failed(self, key: Key, entry: _Entry, error: Exception) -> float:
        entry.failures += 1
        pause = min(FIRST_PAUSE * 2.0 ** (entry.failures - 1), LONGEST_PAUSE)
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        if isinstance(error, RetryLater):
            pause = max(pause, error.seconds)
            logger.warning("%s: %s; again in %.0f s", key, error, pause)
        else:
            logger.exception("%s: again in %.0f s", key, pause)
        return pause

    def _push(self, due: float, key: Key) -> None:
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, key))
        if len(self._heap) > 2 * len(self._entries) + _FEW:
            self._remove_stale()
        self._changed.set()

    def _remove_stale(self) -> None:
        """Remove outdated heap entries of keys that became due sooner. Otherwise they stay until their later time."""
        self._heap = [
            each
            for each in self._heap
            if (entry := self._entries.get(each[2])) is not None
            and not entry.running
            and entry.due == each[0]
        ]
        heapq.heapify(self._heap)

    async def _next(self) -> Key:
        while True:
            self._changed.clear()
            while self._heap:
                due, _, key = self._heap[0]
                entry = self._entries.get(key)
                if entry is None or entry.running or entry.due != due:  # stale
                    heapq.heappop(self._heap)
                elif due <= self._clock():
                    heapq.heappop(self._heap)
                    return key
                else:
                    break
            pause = max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
