"""Watch the objects of jobs and queues with informers. Each change enqueues the jobs and queues that it concerns.

The informers keep only the fields that `ObjectIndex` reads. They list and watch again as long as a kind is missing, so
KAI Scheduler may be installed at any time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.controller import Controller
from trainyard.operator.index import Requests, field_object

# A watch without events for this time is replaced.
_WATCH_SECONDS = 60.0
_STOP_SECONDS = 2.0
_NOT_FOUND = 404
_METADATA = ("name", "namespace", "uid", "generation", "deletionTimestamp", "resourceVersion")
_LABELS = (n.LABEL_JOB, n.LABEL_QUEUE_NAMESPACE, n.LABEL_QUEUE_NAME)
_SPEC = ("jobQueue", "jobDefaults", "kaiQueue", "parentKaiQueue", "queue", "parentQueue")
_STATUS = ("phase", "reason", "observedGeneration")
_OF_JOB = (("labelSelector", n.LABEL_JOB),)
# The kinds, and the resources that the controller watches with their label selectors.
_TORCHRUN, _KAI = f"/apis/{n.API_VERSION}", f"/apis/{n.KAI_GROUP}"
RESOURCES = {
    n.QUEUE_KIND: (f"{_TORCHRUN}/{n.QUEUE_PLURAL}", ()),
    n.JOB_KIND: (f"{_TORCHRUN}/{n.JOB_PLURAL}", ()),
    "Job": ("/apis/batch/v1/jobs", _OF_JOB),
    "Pod": ("/api/v1/pods", _OF_JOB),
    "Service": ("/api/v1/services", _OF_JOB),
    "PersistentVolumeClaim": ("/api/v1/persistentvolumeclaims", _OF_JOB),
    "Queue": (f"{_KAI}/{n.KAI_QUEUE_VERSION}/{n.KAI_QUEUE_PLURAL}", ()),
    "PodGroup": (f"{_KAI}/{n.KAI_POD_GROUP_VERSION}/{n.KAI_POD_GROUP_PLURAL}", ()),
}

log = logging.getLogger(__name__)


class Watches:
    """One informer for each kind."""

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
        """Return the kinds whose watch ended by a fault. Only a new process watches them again."""
        return [kind for kind, each in self._informers.items() if each.has_died]

    def stop(self) -> None:
        """Stop all watches and wait a moment for their threads."""
        for each in self._informers.values():
            each.stop()
        until = time.monotonic() + _STOP_SECONDS
        for each in self._informers.values():
            each.join(max(0.0, until - time.monotonic()))

    def _informer(self, client: Client, kind: str) -> Informer[JsonObject]:
        path, selectors = RESOURCES[kind]
        source = ListWatch(path=path, selectors=selectors, convert=converter(kind))

        def enqueue(before: JsonObject | None, after: JsonObject | None) -> None:
            self._loop.call_soon_threadsafe(on_change, self._controller, before, after)

        return Informer(
            client, source, lambda: self._log_failure(kind), on_change=enqueue, watch_seconds=_WATCH_SECONDS
        )

    def _log_failure(self, kind: str) -> None:
        """Log why a kind can't be watched, once for each reason. A kind that is not installed is none."""
        failure = ""
        try:
            self._informers[kind].items()
        except ApiError as error:
            failure = "" if error.status == _NOT_FOUND else str(error)
        except Exception as error:  # the informer tries again
            failure = str(error)
        if failure and failure != self._failures.get(kind):
            log.warning("%s can't be watched: %s", kind, failure)
        self._failures[kind] = failure


def converter(kind: str) -> Callable[[JsonObject], JsonObject]:
    """Return a function that keeps the fields of an object that the index reads."""

    def convert(item: JsonObject) -> JsonObject:
        meta, labels = item["metadata"], field_object(item["metadata"], "labels")
        kept = {key: meta[key] for key in _METADATA if key in meta}
        if kind == "Queue":
            del kept["resourceVersion"]  # KAI Scheduler updates the status all the time
        spec, status = field_object(item, "spec"), field_object(item, "status")
        return {
            "kind": kind,
            "metadata": {**kept, "labels": {key: labels[key] for key in _LABELS if key in labels}},
            "spec": {key: spec[key] for key in _SPEC if key in spec},
            "status": {key: status[key] for key in _STATUS if key in status},
        }

    return convert


def on_change(controller: Controller, before: JsonObject | None, after: JsonObject | None) -> None:
    """Update the index and enqueue the jobs and queues that a change concerns. In the event loop's thread."""
    item = after or before
    if item is None:
        return
    index, gone, new, kind = controller.index, after is None, before is None, item["kind"]
    found: Requests
    if kind == n.JOB_KIND:
        found = index.job(item, gone=gone, first=new)
    elif kind == n.QUEUE_KIND:
        found = index.queue(item, gone=gone)
    elif kind == "Queue":
        found = index.kai_queue(item, gone=gone)
    elif kind == "PodGroup":
        found = [] if new else index.gang(item, gone=gone)
    else:
        found = index.child(item, first=new)
    controller.enqueue(found)
