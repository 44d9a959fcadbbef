"""Which things are to be looked at, and when: each by one worker at a time, soon after the last thing it was told."""

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

# Pauses after a failure, in seconds; they double.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
_FEW = 64

logger = logging.getLogger(__name__)


class RetryLater(Exception):
    """The thing can't be looked at now; nothing is wrong with it. `seconds` is what the API asks to wait, else 0."""

    def __init__(self, why: str, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass
class _Entry:
    due: float | None = None  # None: nothing asks for it
    running: bool = False
    failures: int = 0
    not_before: float = 0.0  # the end of the pause after its last failure


class WorkQueue(Generic[Key]):
    """Calls `look` for every key that was added, with `workers` of them at a time.

    `look` returns in how many seconds the key is to be looked at again by itself, None for never. Many additions before
    it begins are one; one while it runs is followed by another look. A key whose look fails is tried again after a
    pause, and holds up no other. All methods belong to the event loop's thread.
    """

    def __init__(
        self,
        look: Callable[[Key], Awaitable[float | None]],
        workers: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._workers = workers
        self._clock = clock
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = 0
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """How many keys wait for a worker now, or have one."""
        now = self._clock()
        return sum(
            each.running or (each.due is not None and each.due <= now) for each in self._entries.values()
        )

    def add(self, key: Key, after: float = 0.0) -> None:
        """Look at the key in so many seconds, or sooner if that was asked before; not in the pause after a failure."""
        entry = self._entries.setdefault(key, _Entry())
        due = max(self._clock() + after, entry.not_before)
        if entry.due is not None and entry.due <= due:
            return
        entry.due = due
        if not entry.running:
            self._push(due, key)

    async def run(self) -> None:
        """Works until it is cancelled; what has begun is cancelled, too."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            entry = self._entries[key]
            entry.due, entry.running = None, True
            try:
                again = await self._look(key)
                entry.failures = 0
            except Exception as error:
                again = self._failed(key, entry, error)
                entry.not_before = self._clock() + again
                entry.due = None  # whatever came meanwhile waits for the end of the pause, too
            if again is not None:
                self.add(key, again)
            entry.running = False
            if entry.due is None:
                del self._entries[key]  # a thing that is gone leaves nothing
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
            self._forget_stale()
        self._news.set()

    def _forget_stale(self) -> None:
        """What was asked for later, and sooner since, stays in the heap until that later moment: for ever more."""
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
            self._news.clear()
            while self._heap:
                due, _, key = self._heap[0]
                entry = self._entries.get(key)
                if entry is None or entry.running or entry.due != due:  # asked for earlier, or done meanwhile
                    heapq.heappop(self._heap)
                elif due <= self._clock():
                    heapq.heappop(self._heap)
                    return key
                else:
                    break
            pause = max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
