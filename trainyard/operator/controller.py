"""Reconcile jobs and queues when the API server reports a change, and when a requeue is due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.index import RESOURCES, Key, ObjectIndex, Requests, converter, object_key
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

# A watch without events for this time is replaced.
_WATCH_SECONDS = 60.0
_STOP_SECONDS = 2.0
_NOT_FOUND = 404

_RESYNC = Key("resync", "", "")
_HEARTBEAT = Key("heartbeat", "", "")

log = logging.getLogger(__name__)


class Controller:
    """The controller of all jobs and queues. Reconciles wait until they are allowed.

    Call all methods in the event loop's thread, except `silent_seconds`.
    """

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
        metrics.count_waiting(lambda: len(self._queue))
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="reconcile")

    def enqueue(self, requests: Requests) -> None:
        """Reconcile these keys, each after its delay."""
        for key, after in requests:
            self._queue.add(key, after)
        self._metrics.jobs(self.index.phases())

    def change(self, before: JsonObject | None, after: JsonObject | None) -> None:
        """Reconcile the jobs and queues that depend on a changed object."""
        self.enqueue(self.index.change(before, after))

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
        """Return the seconds since a reconcile ended or the event loop ran. After STUCK_SECONDS, the process hangs."""
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
            reconcile = (
                self._reconciler.reconcile_job if key.kind == n.JOB_KIND else self._reconciler.reconcile_queue
            )
            with self._metrics.reconcile(key.kind):
                return await self._in_thread(lambda: reconcile(key.namespace, key.name))
        except (ApiError, ApiUnavailable) as error:
            raise RetryLater(str(error), error.retry_after) from error
        finally:
            self._last_end = self._clock()

    async def _resync(self) -> float:
        """List all jobs and queues, because a watch may be silent without being closed."""
        before = self.index.all_keys()
        queues = await self._in_thread(lambda: self._list(n.QUEUE_KIND))
        jobs = await self._in_thread(lambda: self._list(n.JOB_KIND))
        for item in queues:
            # The watch may have seen a later state than the list, or an earlier one.
            known = self.index.find_queue(item["metadata"]["namespace"], item["metadata"]["name"])
            self.enqueue(self.index.queue(item if known is None else max(known, item, key=_version)))
        for item in jobs:
            self.enqueue(self.index.job(item, first=True))
        self.enqueue(self.index.remove(before - {object_key(item) for item in (*queues, *jobs)}))
        return RESYNC_SECONDS

    def _list(self, kind: str) -> list[JsonObject]:
        return self._objects.read(ListWatch(path=RESOURCES[kind][0], convert=converter(kind)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _version(item: JsonObject) -> int:
    """Return the resourceVersion, which may be compared (https://kubernetes.io/docs/reference/using-api/api-concepts/)."""
    return int(item["metadata"]["resourceVersion"])


class Watches:
    """One informer for each kind.

    The informers keep only the fields that `ObjectIndex` reads. They retry while a kind is missing, so KAI Scheduler
    may be installed at any time.
    """

    def __init__(self, client: Client, controller: Controller, loop: asyncio.AbstractEventLoop) -> None:
        self._controller = controller
        self._loop = loop
        self._failures: dict[str, str] = {}
        self._informers = {kind: self._informer(client, kind) for kind in RESOURCES}

    def start(self) -> None:
        """Start to list and watch. Return when jobs and queues are listed, or can't be listed yet."""
        for each in self._informers.values():
            each.start()
        for kind in (n.JOB_KIND, n.QUEUE_KIND):
            with suppress(ApiError, ApiUnavailable):
                self._informers[kind].items()

    def died(self) -> list[str]:
        """Return the kinds whose watch ended because of a fault. Only a new process can watch them again."""
        return [kind for kind, each in self._informers.items() if each.has_died]

    def stop(self) -> None:
        """Stop all watches, and wait a moment for the end of their threads."""
        for each in self._informers.values():
            each.stop()
        until = time.monotonic() + _STOP_SECONDS
        for each in self._informers.values():
            each.join(max(0.0, until - time.monotonic()))

    def _informer(self, client: Client, kind: str) -> Informer[JsonObject]:
        path, selectors = RESOURCES[kind]
        source = ListWatch(path=path, selectors=selectors, convert=converter(kind))

        def enqueue(before: JsonObject | None, after: JsonObject | None) -> None:
            self._loop.call_soon_threadsafe(self._controller.change, before, after)

        return Informer(
            client, source, lambda: self._report(kind), on_change=enqueue, watch_seconds=_WATCH_SECONDS
        )

    def _report(self, kind: str) -> None:
        """Tell the index that a kind is listed. Log why one can't be watched, once for each reason.

        A kind that is not installed is none.
        """
        failure = ""
        if self._informers[kind].has_synced:
            self._loop.call_soon_threadsafe(self._controller.index.mark_synced, kind)
        try:
            self._informers[kind].items()
        except ApiError as error:
            failure = "" if error.status == _NOT_FOUND else str(error)
        except Exception as error:  # the informer tries again
            failure = str(error)
        if failure and failure != self._failures.get(kind):
            log.warning("%s can't be watched: %s", kind, failure)
        self._failures[kind] = failure
