"""Reconcile jobs and queues when the API server reports a change, and when a requeue is due.

`Watches` passes each change to the `Controller`. It adds the jobs and queues that depend on the change to its
`WorkQueue`, which calls the `Reconciler` in one of eight threads.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.informer import Informer, ListWatch, stop_informers
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.index import RESOURCES, Key, ObjectIndex, Requests, converter
from trainyard.operator.metrics import Metrics
from trainyard.operator.reconciler import Reconciler

K = TypeVar("K", bound=Hashable)

# A reconcile makes six requests or more, one after another, and waits for the API server most of the time.
WORKERS = 8
# The interval of a resync in seconds, which reconciles all objects again. It makes up for lost events.
RESYNC_SECONDS = 600.0
# The interval of the heartbeat: a no-op reconcile that proves the workers are alive.
HEARTBEAT_SECONDS = 10.0
# Requests end in less time (trainyard/k8s/client.py: RetryPolicy), and there are eight workers.
STUCK_SECONDS = 180.0
# The pauses after a failure, in seconds. They double.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0

# A watch without events for this time is replaced.
_WATCH_SECONDS = 60.0
_NOT_FOUND = 404

_RESYNC = Key("resync", "", "")
_HEARTBEAT = Key("heartbeat", "", "")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """A key that is due, or in a call. Times are those of the event loop's clock."""

    due: float | None = None
    timer: asyncio.TimerHandle | None = None
    is_running: bool = False
    failures: int = 0
    not_before: float = 0.0  # the end of the pause after the last failure


class WorkQueue(Generic[K]):
    """Call `process` for each added key, with a limited number of workers. Each key has at most one call at a time.

    `process` returns the seconds until the key is due again, None for never. Additions before a call starts count once,
    and an addition during a call starts another call. A failed key is retried after a pause and delays no other key.
    Call the methods in the event loop's thread, except `len`.
    """

    def __init__(self, process: Callable[[K], Awaitable[float | None]], workers: int) -> None:
        self._process = process
        self._workers = workers
        self._entries: dict[K, _Entry] = {}
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._running = 0

    def __len__(self) -> int:
        """Return the number of keys that are due or in a call."""
        return self._ready.qsize() + self._running

    def add(self, key: K, after: float = 0.0) -> None:
        """Process the key after a delay in seconds, or sooner if already due, but not in a pause after a failure."""
        entry = self._entries.setdefault(key, _Entry())
        due = max(asyncio.get_running_loop().time() + after, entry.not_before)
        if entry.due is None or due < entry.due:
            entry.due = due
            self._schedule(key, entry)

    async def run(self) -> None:
        """Process keys until the task is cancelled. Running calls are cancelled as well."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            entry = self._entries[key]
            entry.due, entry.timer, entry.is_running = None, None, True
            self._running += 1
            try:
                after = await self._process(key)
                entry.failures = 0
            except Exception as error:
                after = self._pause(key, entry, error)
                entry.not_before = asyncio.get_running_loop().time() + after
                entry.due = None  # additions from the meantime wait for the end of the pause as well
            self._running -= 1
            if after is not None:
                self.add(key, after)
            entry.is_running = False
            if entry.due is None:
                del self._entries[key]
            else:
                self._schedule(key, entry)

    def _schedule(self, key: K, entry: _Entry) -> None:
        """Pass a key to the workers when it is due, and after its running call."""
        if entry.timer is not None:
            entry.timer.cancel()
        loop = asyncio.get_running_loop()
        if entry.is_running or entry.due is None:
            entry.timer = None
        elif entry.due > loop.time():
            entry.timer = loop.call_at(entry.due, self._make_ready, key)
        else:
            self._make_ready(key)

    def _make_ready(self, key: K) -> None:
        self._entries[key].due = float("-inf")  # so that no addition makes it ready twice
        self._ready.put_nowait(key)

    def _pause(self, key: K, entry: _Entry, error: Exception) -> float:
        """Return the pause after a failed call, at least as long as the API server asks for."""
        entry.failures += 1
        pause = min(FIRST_PAUSE * 2.0 ** (entry.failures - 1), LONGEST_PAUSE)
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        if isinstance(error, ApiError | ApiUnavailable):
            pause = max(pause, error.retry_after)
            log.warning("%s: %s; the next try is in %.0f s", key, error, pause)
        else:
            log.exception("%s: the reconcile failed; the next try is in %.0f s", key, pause)
        return pause


class Controller:
    """The controller of all jobs and queues. Reconciles wait until they are allowed.

    Call all methods in the event loop's thread, except `silent_seconds`.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        metrics: Metrics,
        index: ObjectIndex | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index or ObjectIndex()
        self._reconciler = reconciler
        self._metrics = metrics
        self._clock = clock
        self._last_end = self._last_beat = clock()
        self._until = float("-inf")
        self._renewed = asyncio.Event()
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile, WORKERS)
        metrics.count(self.index.phases, lambda: len(self._queue))
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="reconcile")

    def enqueue(self, requests: Requests) -> None:
        """Reconcile these keys, each after its delay."""
        for key, after in requests:
            self._queue.add(key, after)

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
                self.enqueue(self.index.resync())
                return RESYNC_SECONDS
            is_job = key.kind == n.JOB_KIND
            reconcile = self._reconciler.reconcile_job if is_job else self._reconciler.reconcile_queue
            with self._metrics.reconcile(key.kind):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, reconcile, key.namespace, key.name)
        finally:
            self._last_end = self._clock()


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
        for informer in self._informers.values():
            informer.start()
        for kind in (n.JOB_KIND, n.QUEUE_KIND):
            with suppress(ApiError, ApiUnavailable):
                self._informers[kind].items()

    def died(self) -> list[str]:
        """Return the kinds whose watch ended because of a fault. Only a new process can watch them again."""
        return [kind for kind, informer in self._informers.items() if informer.has_died]

    def stop(self) -> None:
        """Stop all watches, and wait a moment for the end of their threads."""
        stop_informers(self._informers.values())

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

        A kind that is not installed has no objects.
        """
        failure = ""
        if self._informers[kind].has_synced:
            self._loop.call_soon_threadsafe(self._controller.index.mark_synced, kind)
        try:
            self._informers[kind].items()
        except Exception as error:  # the informer tries again
            is_missing = isinstance(error, ApiError) and error.status == _NOT_FOUND
            failure = "" if is_missing else str(error)
        if failure and failure != self._failures.get(kind):
            log.warning("%s can't be watched: %s", kind, failure)
        self._failures[kind] = failure
