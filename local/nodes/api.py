"""The Kubernetes client (trainyard/k8s) for the event loop: `Api` and `Informer` work in threads. Formats of times."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.k8s import informer, kubeconfig
from trainyard.k8s.client import JSON, ApiError, ApiUnavailable, RetryPolicy
from trainyard.k8s.informer import Key, ListWatch

__all__ = ["ApiError", "ApiUnavailable"]

log = logging.getLogger(__name__)

Object = dict[str, Any]

NODES = "/api/v1/nodes"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# One attempt, because all callers retry themselves, with current data.
RETRY = RetryPolicy(timeout=0.0)
# In addition to the watches, and within the number of connections that `Client` keeps.
REQUESTS_AT_ONCE = 8

# Errors while the API server is down or restarting, and those of file systems.
UNREACHABLE = (ApiUnavailable, OSError)


class Api:
    """Requests to one API server. Use it as an async context manager.

    Each request may raise ApiError if the server refuses it, and ApiUnavailable if there is no answer.
    """

    def __init__(self, file: Path) -> None:
        """Connect with the kubeconfig `file`.

        Raises:
            ApiUnavailable: The kubeconfig is not usable.
        """
        self.client, _ = kubeconfig.connect(str(file), None, RETRY)
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="request")

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def request(
        self, method: str, path: str, body: Object | None = None, content: str = JSON
    ) -> Object:
        """Make one request.

        A cancelled caller still waits for the end of the request. Otherwise a node could be created after its deletion.
        """
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: self.client.request(method, path, body=body, content_type=content)
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            running.exception()  # nothing else retrieves it
            raise

    async def get(self, path: str) -> Object:
        return await self.request("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, content: str = STRATEGIC) -> Object:
        return await self.request("PATCH", path, body, content)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE one object. Options are in the body: with a body, the API server ignores query parameters."""
        return await self.request("DELETE", path, body)


def key_of(item: Object) -> Key:
    """Return the namespace (empty for cluster-scoped objects) and the name."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def owner_reference(node: Object) -> Object:
    """Return the reference with which an object is deleted with its Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node["metadata"]["name"],
        "uid": node["metadata"]["uid"],
    }


@contextlib.contextmanager
def ignore_status(*codes: int) -> Iterator[None]:
    """Ignore an answer of the API server with one of these HTTP status codes."""
    try:
        yield
    except ApiError as error:
        if error.status not in codes:
            raise


async def post_event(api: Api, kind: str, item: Object, event: Object) -> None:
    """Post an Event about an object of a kind of v1. `event` has its type, reason, message and source."""
    metadata, now = item["metadata"], timestamp(time.time())
    namespace = metadata.get("namespace", "default")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name'][:200]}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": kind,
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
        },
        **event,
        "message": event["message"][:1000],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await api.create(f"/api/v1/namespaces/{namespace}/events", body)
    except (*UNREACHABLE, ApiError) as error:
        log.debug("event %s of %s/%s: %s", event["reason"], namespace, metadata["name"], error)


class Informer:
    """A local copy of the objects at one path, with a callback for each change.

    Use it only in the event loop's thread. The callback gets "set" or "gone" and the object. `synced` is set after the
    first list.
    """

    def __init__(
        self, api: Api, path: str, changed: Callable[[str, Object], None], selector: str = ""
    ) -> None:
        self.api = api
        self.path = path
        self.changed = changed
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        selectors = (("fieldSelector", selector),) if selector else ()
        self._list_watch = ListWatch[Object](
            path=path, selectors=selectors, convert=lambda item: item, cached=False
        )

    async def run(self) -> None:
        """List and watch until cancelled."""
        loop = asyncio.get_running_loop()

        def on_change(before: Object | None, after: Object | None) -> None:
            loop.call_soon_threadsafe(self.apply, before, after)

        def check_synced() -> None:
            if watching.has_synced and not self.synced.is_set():
                loop.call_soon_threadsafe(self.synced.set)

        watching = informer.Informer(self.api.client, self._list_watch, check_synced, on_change=on_change)
        watching.start()
        try:
            await loop.create_future()  # never done
        finally:
            watching.stop()

    def apply(self, before: Object | None, after: Object | None) -> None:
        """Apply a change: from `before` to `after`, None for an object that does not exist."""
        if before is not None and (
            after is None or after["metadata"]["uid"] != before["metadata"]["uid"]
        ):  # replaced between two watches: the old object must end
            self.objects.pop(key_of(before), None)
            self.changed("gone", before)
        if after is not None:
            self.objects[key_of(after)] = after
            self.changed("set", after)


def timestamp(epoch: float) -> str:
    """Return seconds since 1970 as metav1.Time (whole seconds, UTC)."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(epoch: float) -> str:
    """Return seconds since 1970 as metav1.MicroTime."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nano_timestamp(epoch: float) -> str:
    """Return seconds since 1970 as RFC 3339 with fractions, as in container logs."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def epoch(text: str) -> float:
    """Return a metav1.Time as seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()
