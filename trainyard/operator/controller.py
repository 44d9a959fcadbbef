"""Reconcile jobs and queues when the API server reports a change, and when a requeue is due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.index import Key, ObjectIndex, Requests, object_key
from trainyard.operator.metrics import Metrics
from trainyard.operator.reconciler import Reconciler
from trainyard.operator.workqueue import RetryLater, WorkQueue

T = TypeVar("T")

# A reconcile makes six requests or more, one after another, and waits for the API server most of the time.
WORKERS = 8
# The interval of a resync of all objects, in seconds. It makes up for lost events.
RESYNC_SECONDS = 600.0
# The interval of the heartbeat: a no-op reconcile that proves the workers are alive.
HEARTBEAT_SECONDS = 10.0
# Requests end in less time (trainyard/k8s/client.py: RetryPolicy), and there are eight workers.
STUCK_SECONDS = 180.0

_RESYNC = Key("resync", "", "")
_HEARTBEAT = Key("heartbeat", "", "")

log = logging.getLogger(__name__)


class Controller:
    """Call all methods in the event loop's thread, except `silent_seconds`. Reconciles wait until they are allowed."""

    def __init__(
        self,
        objects: Objects,
        reconciler: Reconciler,
        metrics: Metrics,
        index: ObjectIndex | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index or ObjectIndex()
        self._objects = objects
        self._reconciler = reconciler
        self._metrics = metrics
        self._clock = clock
        self._last_end = self._last_beat = clock()
        self._until = float("-inf")
        self._renewed = asyncio.Event()
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile, WORKERS, clock=clock)
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="reconcile")

    def enqueue(self, requests: Requests) -> None:
        """Reconcile these keys, each after its delay."""
        for key, after in requests:
            self._queue.add(key, after)
        self._metrics.jobs(self.index.phases())

    def beat(self) -> None:
        """Record that the event loop runs."""
        self._last_beat = self._clock()

    def allow(self, until: float) -> None:
        """Allow reconciles to start until this time of the clock. Running ones continue."""
        if not self._is_allowed():
            self._last_end = self._clock()
        self._until = until
        self._renewed.set()

    def _is_allowed(self) -> bool:
        return self._clock() < self._until

    def silent_seconds(self) -> float:
        """Return the time since a reconcile ended, or since the event loop ran. After STUCK_SECONDS, it hangs."""
        loop = self._clock() - self._last_beat
        return max(loop, self._clock() - self._last_end) if self._is_allowed() else loop

    async def run(self) -> None:
        """Reconcile until the task is cancelled. Running reconciles end first."""
        self._queue.add(_HEARTBEAT)
        self._queue.add(_RESYNC, RESYNC_SECONDS)
        try:
            await self._queue.run()
        finally:
            await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
            self._reconciler.close()

    async def _reconcile(self, key: Key) -> float | None:
        while not self._is_allowed():
            self._renewed.clear()
            await self._renewed.wait()
        try:
            if key == _HEARTBEAT:
                return HEARTBEAT_SECONDS
            if key == _RESYNC:
                return await self._resync()
            reconcile = self._reconciler.job if key.kind == n.JOB_KIND else self._reconciler.queue
            with self._metrics.reconcile(key.kind):
                return await self._in_thread(lambda: reconcile(key.namespace, key.name))
        except (ApiError, ApiUnavailable) as error:
            raise RetryLater(str(error), error.retry_after) from error
        finally:
            self._last_end = self._clock()
            self._metrics.waiting(len(self._queue) - 1)

    async def _resync(self) -> float:
        """List all jobs and queues. A watch may be silent without being closed."""
        before = self.index.all_keys()
        queues = await self._in_thread(lambda: self._objects.list(n.API_VERSION, n.QUEUE_KIND, ""))
        jobs = await self._in_thread(lambda: self._objects.list(n.API_VERSION, n.JOB_KIND, ""))
        for item in queues:
            self.enqueue(self.index.queue(item))
        for item in jobs:
            self.enqueue(self.index.job(item, first=True))
        self.enqueue(self.index.remove(before - {object_key(item) for item in (*queues, *jobs)}))
        return RESYNC_SECONDS

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
