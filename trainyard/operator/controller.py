"""Looks at jobs and queues as the API's events and the clock ask for it, several at a time."""

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

# A look is six requests or more, one after another, of which each waits for the API server.
WORKERS = 8
# Whatever event was lost, everything is looked at again after this time, in seconds.
RESYNC_SECONDS = 600.0
# A look at nothing: it comes to its end as long as there is a worker that ends a look.
BEAT_SECONDS = 10.0
# Requests are given up in less (trainyard/k8s/client.py, RetryPolicy), and there are eight workers.
STUCK_SECONDS = 180.0

_RESYNC = Key("resync", "", "")
_BEAT = Key("beat", "", "")

log = logging.getLogger(__name__)


class Controller:
    """All methods belong to the event loop's thread. Looks wait while they are not allowed, where another works."""

    def __init__(
        self,
        objects: Objects,
        reconciler: Reconciler,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known = ObjectIndex()
        self._objects = objects
        self._reconciler = reconciler
        self._metrics = metrics
        self._clock = clock
        self._alive = clock()
        self._until = float("-inf")
        self._renewed = asyncio.Event()
        self._work: WorkQueue[Key] = WorkQueue(self._look, WORKERS, clock=clock)
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="look")

    def hear(self, asked: Requests) -> None:
        """Look at these."""
        for key, after in asked:
            self._work.add(key, after)
        self._metrics.jobs(self.known.phases())

    def allow(self, until: float) -> None:
        """Looks may begin before this moment of the clock; those that have begun go on."""
        if not self._is_allowed():
            self._alive = self._clock()
        self._until = until
        self._renewed.set()

    def _is_allowed(self) -> bool:
        return self._clock() < self._until

    def silent_seconds(self) -> float:
        """For how long no look came to an end; more than STUCK_SECONDS says that the controller hangs."""
        return self._clock() - self._alive if self._is_allowed() else 0.0

    async def run(self) -> None:
        """Works until it is cancelled; looks that have begun come to their end first."""
        self._work.add(_BEAT)
        self._work.add(_RESYNC, RESYNC_SECONDS)
        try:
            await self._work.run()
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._reconciler.close()

    async def _look(self, key: Key) -> float | None:
        while not self._is_allowed():
            self._renewed.clear()
            await self._renewed.wait()
        try:
            if key == _BEAT:
                return BEAT_SECONDS
            if key == _RESYNC:
                return await self._resync()
            with self._metrics.reconcile(key.kind):
                return await self._in_thread(lambda: self._reconcile(key))
        except (ApiError, ApiUnavailable) as error:
            raise RetryLater(str(error), error.retry_after) from error
        finally:
            self._alive = self._clock()
            self._metrics.waiting(len(self._work) - 1)

    def _reconcile(self, key: Key) -> float | None:
        look = self._reconciler.job if key.kind == n.JOB_KIND else self._reconciler.queue
        return look(key.namespace, key.name)

    async def _resync(self) -> float:
        """An event that was lost is made up for: a watch may be silent without being closed."""
        before = self.known.there()
        queues = await self._in_thread(lambda: self._objects.list(n.API_VERSION, n.QUEUE_KIND, ""))
        jobs = await self._in_thread(lambda: self._objects.list(n.API_VERSION, n.JOB_KIND, ""))
        for item in queues:
            self.hear(self.known.queue(item))
        for item in jobs:
            self.hear(self.known.job(item, first=True))
        self.hear(self.known.lost(before - {object_key(item) for item in (*queues, *jobs)}))
        return RESYNC_SECONDS

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
