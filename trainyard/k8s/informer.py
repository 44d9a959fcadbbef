"""Keep lists of the API in memory and update them by watches, as client-go's informers do.

The rules are those of https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes: list
once, then watch from the list's resourceVersion. After a lost connection, watch from the last version seen, which may
be a bookmark's. If that version is gone (410), list again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trainyard.k8s.client import (
    READ_SECONDS,
    REFUSED_STATUS,
    RETRIED_STATUS,
    TOO_MANY_REQUESTS,
    ApiError,
    ApiUnavailable,
    Client,
    JsonObject,
    Response,
)
from trainyard.k8s.stream import MalformedResponse, lines, read_list

log = logging.getLogger(__name__)

T = TypeVar("T")

# The API server ends a watch after this time, or a little less, so that not all are renewed in the same second.
# client-go asks for 5 to 10 minutes (k8s.io/client-go@v0.35.4/tools/cache/reflector.go, defaultMinWatchTimeout).
WATCH_SECONDS = 300.0
# A watch without data for this time after its timeout is dead. Bookmarks arrive about once a minute, but clients must
# not rely on them.
GRACE_SECONDS = 10.0
_GONE = 410
_CLOSING_SECONDS = 2.0

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ListWatch(Generic[T]):
    """One list of the API, and the conversion of its items.

    `convert` returns the item to keep, or None to drop it. `matters` returns whether a change is reported. Its
    arguments are the item before and after, None if it does not exist. With `cached`, the first list may be an older
    one from the API server's cache, which takes less load.
    """

    path: str
    selectors: tuple[tuple[str, str], ...] = ()
    convert: Callable[[JsonObject], T | None] = field(compare=False)
    matters: Callable[[T | None, T | None], bool] = field(compare=False, default=lambda _before, _after: True)
    cached: bool = True


class UnreadableObject(Exception):
    """An object of the list can't be converted. The others are still updated."""


class _Outdated(Exception):
    """The watch can't be resumed. The list must be read again."""


class Informer(Generic[T]):
    """Keeps the items of one ListWatch. Its thread ends only with `stop`: after any error it lists and watches again.

    Both callbacks run in that thread. `on_change` gets each changed item before and after the change, None if it does
    not exist. `changed` is called after every change that matters, and when `items` no longer waits for this informer.
    """

    def __init__(
        self,
        client: Client,
        source: ListWatch[T],
        changed: Callable[[], None],
        *,
        on_change: Callable[[T | None, T | None], None] = lambda _before, _after: None,
        watch_seconds: float = WATCH_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._client = client
        self._source = source
        self._changed = changed
        self._on_change = on_change
        self._watch_seconds = watch_seconds
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._items: dict[Key, T] = {}
        self._unreadable: dict[Key, UnreadableObject] = {}
        self._version = ""
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self.has_synced = False  # whether the list was read at least once
        self._response: Response | None = None
        self._connected = False
        self._heard = time.monotonic()
        self._problem = "no answer yet"
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {source.path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end. It ends at once if it waits for events."""
        with self._lock:
            self._stopping.set()
            if self._response is not None:
                self._response.abort()

    def join(self, timeout: float) -> None:
        """Wait at most this many seconds for the end of the thread."""
        self._thread.join(timeout)

    @property
    def has_died(self) -> bool:
        """Return whether the thread ended without `stop`. No known fault causes this."""
        started = self._thread.ident is not None
        return started and not self._thread.is_alive() and not self._stopping.is_set()

    def items(self) -> tuple[T, ...]:
        """Return the kept items. Wait for the first list.

        Raises:
            ApiError: The API server refuses the list.
            ApiUnavailable: It was silent for the timeout of the client's RetryPolicy.
            UnreadableObject: The list has an object that can't be converted.
        """
        timeout = self._client.retry.timeout
        while (left := self._heard + timeout - time.monotonic()) > 0 and not self._settled.wait(left):
            pass  # wait longer while a long list arrives
        with self._lock:
            if self._failure is not None:
                raise self._failure
            for unreadable in self._unreadable.values():
                raise unreadable
            silent = time.monotonic() - self._heard
            if not self._connected and (not self.has_synced or silent > timeout):
                raise ApiUnavailable(f"{self._source.path}: not heard for {silent:.0f} s: {self._problem}")
            return tuple(self._items.values())

    # -- in the thread

    def _run(self) -> None:
        failures = 0
        pause = 0.0
        ready = False  # whether the API server said so and refused nevertheless
        while not self._stopping.wait(pause):
            began = time.monotonic()
            pause = 0.0
            known = self._version
            was_ready, ready = ready, False
            try:
                if not self._version:
                    self._list()
                self._watch()
            except _Outdated as error:
                self._lost(str(error))
                self._version = ""
            except ApiUnavailable as error:
                self._lost(str(error))
            except ApiError as error:
                pause = error.retry_after
                refused = error.status in REFUSED_STATUS
                passing = error.status == _GONE or error.status in RETRIED_STATUS
                passing = passing or (refused and not was_ready)
                self._lost(str(error), None if passing else error)
                if error.status != TOO_MANY_REQUESTS:
                    self._version = ""  # a new list helps against any refusal of this watch
                ready = refused and (was_ready or self._client.is_ready())
            except Exception as error:  # such as an event without a version
                log.exception("%s: the watch failed and is started again", self._source.path)
                self._lost(f"{type(error).__name__}: {error}", error)
                self._version = ""
            else:
                self._lost("the watch ended")
            longest = self._client.retry.max_delay
            if time.monotonic() - began >= longest:
                failures = 0
                continue
            if self._version not in ("", known):
                failures = 0
            wait = min(self._client.retry.initial_delay * 2.0**failures, longest)
            pause = max(pause, wait * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            failures += 1

    def _list(self) -> None:
        """Read the whole list.

        The first list may come from the API server's cache. A later one may not, because the cache may be older
        than the lost watch.
        """
        query = dict(self._source.selectors)
        if self._source.cached and not self.has_synced:
            query["resourceVersion"] = "0"
        items: dict[Key, T] = {}
        unreadable: dict[Key, UnreadableObject] = {}

        def keep(item: JsonObject) -> None:
            self._heard = time.monotonic()
            key = _key(item)
            converted = self._convert(item, key, unreadable)
            if converted is not None:
                items[key] = converted

        with self._open(query) as response:
            version = read_list(response.chunks(), keep)
        with self._lock:
            before, self._items = self._items, items
            failed, self._unreadable = unreadable.keys() - self._unreadable.keys(), unreadable
            self._version = version
            self._heard = time.monotonic()
            self._failure = None
            first, self.has_synced = not self.has_synced, True
        self._settled.set()
        both = [(before.get(key), items.get(key)) for key in {**before, **items}]
        changes = [pair for pair in both if pair[0] != pair[1]]
        for pair in changes:
            self._call(self._on_change, *pair)
        if first or failed or any(self._source.matters(*pair) for pair in changes):
            self._call(self._changed)

    def _watch(self) -> None:
        """Apply the changes after the last known version, until the API server ends the watch."""
        seconds = self._watch_seconds * random.uniform(0.8, 1.0)  # noqa: S311 (jitter)
        query = {
            **dict(self._source.selectors),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        with self._open(query, seconds + self._grace_seconds) as response:
            with self._lock:
                self._connected = True
            try:
                for event in lines(response.chunks()):
                    self._take(event["type"], event["object"])
            except MalformedResponse as error:  # a watch from the same version may bring the same line
                raise _Outdated(str(error)) from None

    def _take(self, kind: str, item: JsonObject) -> None:
        if kind == "ERROR":
            raise _Outdated(f"{item.get('code')} {item.get('reason')}: {item.get('message')}")
        version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":  # it has a version and nothing else
            self._version = version
            return
        key = _key(item)
        unreadable: dict[Key, UnreadableObject] = {}
        after = None if kind == "DELETED" else self._convert(item, key, unreadable)
        with self._lock:
            before = self._items.get(key)
            if after is not None:
                self._items[key] = after
            elif before is not None:
                del self._items[key]
            failed = bool(unreadable) and key not in self._unreadable
            self._unreadable.pop(key, None)
            self._unreadable.update(unreadable)
            self._version = version
        if before != after:
            self._call(self._on_change, before, after)
        if failed or (before != after and self._source.matters(before, after)):
            self._call(self._changed)

    def _convert(self, item: JsonObject, key: Key, unreadable: dict[Key, UnreadableObject]) -> T | None:
        """Convert an item. Leave out an item that can't be converted, and record the error."""
        try:
            return self._source.convert(item)
        except Exception as error:
            name = "/".join(part for part in key if part)
            unreadable[key] = UnreadableObject(
                f"{self._source.path}: {name} cannot be read: {type(error).__name__}: {error}"
            )
            return None

    @contextmanager
    def _open(self, query: dict[str, str], read_timeout: float = READ_SECONDS) -> Iterator[Response]:
        """Open a response that `stop` can end."""
        with self._client.open(self._source.path, query, read_timeout=read_timeout) as response:
            with self._lock:
                self._response = response
                if self._stopping.is_set():
                    response.abort()
            try:
                yield response
            finally:
                with self._lock:
                    self._response = None

    def _lost(self, problem: str, failure: Exception | None = None) -> None:
        """Record that the connection is lost, and why."""
        with self._lock:
            if self._connected:
                self._connected, self._heard = False, time.monotonic()
            self._problem = problem
            self._failure = failure
        if failure is not None:
            self._settled.set()
            self._call(self._changed)

    def _call(self, callback: Callable[..., None], *arguments: T | None) -> None:
        """Call a callback. Its error does not end the watch."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("%s: a change was not handled", self._source.path)


class Informers:
    """One informer for each ListWatch in use."""

    def __init__(self, client: Client, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed
        self._running: dict[ListWatch[Any], Informer[Any]] = {}

    def keep(self, sources: Iterable[ListWatch[Any]]) -> None:
        """Watch exactly these lists. Start the new watches together, and end the other ones."""
        wanted = list(sources)
        for source in [each for each in self._running if each not in wanted]:
            self._running.pop(source).stop()
        for source in wanted:
            self.start(source)

    def start(self, source: ListWatch[Any]) -> None:
        """Also watch this list."""
        if source not in self._running:
            self._running[source] = Informer(self._client, source, self._changed)
            self._running[source].start()

    def items(self, source: ListWatch[T]) -> tuple[T, ...]:
        """Return the items of a ListWatch in use. Wait for its first list, and raise as `Informer.items` does."""
        informer: Informer[T] = self._running[source]
        return informer.items()

    def close(self) -> None:
        """End all watches, and wait a moment for their end."""
        ended = list(self._running.values())
        self._running.clear()
        stop_informers(ended)


def stop_informers(informers: Iterable[Informer[Any]]) -> None:
    """Stop these informers, and wait a moment for the end of their threads."""
    ended = list(informers)
    for informer in ended:
        informer.stop()
    until = time.monotonic() + _CLOSING_SECONDS
    for informer in ended:
        informer.join(max(0.0, until - time.monotonic()))


def _key(item: JsonObject) -> Key:
    meta = item["metadata"]
    return str(meta.get("namespace") or ""), str(meta["name"])
