"""A copy in memory of one list of the API, kept up to date by a watch, as client-go's reflectors do it.

The rules are those of https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes: list
once, then watch from the list's resourceVersion; after a lost connection watch again from the last version seen,
bookmarks included; when that version is gone (410), list again.
"""

from __future__ import annotations

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
    TOO_MANY,
    ApiError,
    ApiUnavailable,
    Client,
    JsonObject,
    Response,
)
from trainyard.k8s.stream import lines, read_list

T = TypeVar("T")

# The API server ends a watch after this time, a little less for some, so that not all come back in the same second.
# client-go asks for 5 to 10 minutes (k8s.io/client-go@v0.35.4/tools/cache/reflector.go, defaultMinWatchTimeout).
WATCH_SECONDS = 300.0
# A watch that says nothing for this much longer than it was asked to last is dead. Bookmarks come about once a
# minute, but no client may rely on them.
GRACE_SECONDS = 10.0
_GONE = 410
_CLOSING_SECONDS = 2.0

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ListWatch(Generic[T]):
    """One list of the API, and what is kept of its items.

    `convert` returns None for an item that is of no use. `matters` says whether a change (before, after; None is not
    there) is news. With `cached` the first list may be an older one, from the API server's cache: that costs it little.
    """

    path: str
    selectors: tuple[tuple[str, str], ...] = ()
    convert: Callable[[JsonObject], T | None] = field(compare=False)
    matters: Callable[[T | None, T | None], bool] = field(compare=False, default=lambda _before, _after: True)
    cached: bool = True


class _Outdated(Exception):
    """This watch can't be continued; the list has to be read again."""


class Informer(Generic[T]):
    """Keeps the items of one source. Its thread ends with `stop`.

    `changed` is called, from that thread, after every change of what is kept, and when waiting for this informer has
    an end. `on_change` gets each item that changed before that: as it was and as it is, None where it is not there.
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
        self._version = ""
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self._listed = False
        self._answer: Response | None = None
        self._connected = False
        self._heard = time.monotonic()
        self._problem = "no answer yet"
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {source.path}", daemon=True)

    def start(self) -> None:
        """Begins to list and watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread as soon as it notices, at once if it waits for events."""
        with self._lock:
            self._stopping.set()
            if self._answer is not None:
                self._answer.cut()

    def join(self, timeout: float) -> None:
        """Waits this many seconds for the thread's end."""
        self._thread.join(timeout)

    @property
    def has_synced(self) -> bool:
        """Whether the list was read once."""
        return self._listed

    def items(self) -> tuple[T, ...]:
        """What is there, once it was listed for the first time.

        Raises ApiError when the API refuses, and ApiUnavailable when it was not heard for the patience of `Rest`. An
        object that can't be read raises what its conversion does.
        """
        patience = self._client.retry.timeout
        while (left := self._heard + patience - time.monotonic()) > 0 and not self._settled.wait(left):
            pass  # a long list that comes is heard, and is waited for
        with self._lock:
            if self._failure is not None:
                raise self._failure
            silent = time.monotonic() - self._heard
            if not self._connected and (not self._listed or silent > patience):
                raise ApiUnavailable(f"{self._source.path}: not heard for {silent:.0f} s: {self._problem}")
            return tuple(self._items.values())

    # -- in the thread

    def _run(self) -> None:
        failures = 0
        pause = 0.0
        ready = False  # whether the API server said so, and refuses nevertheless
        while not self._stopping.wait(pause):
            began = time.monotonic()
            pause = 0.0
            known = self._version
            told_ready, ready = ready, False
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
                passing = passing or (refused and not told_ready)
                self._lost(str(error), None if passing else error)
                if error.status != TOO_MANY:
                    self._version = ""  # whatever it has against this watch, a new list is good against it
                ready = refused and (told_ready or self._client.is_ready())
            except Exception as error:  # an object that can't be read; the reader gets to know
                self._lost(str(error), error)
                return
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
        """Reads the whole list.

        The first one may come from a cache. A later one may not, or what is known already could be undone: a cache may
        be older than the watch that was lost.
        """
        query = dict(self._source.selectors)
        if self._source.cached and not self._listed:
            query["resourceVersion"] = "0"
        items: dict[Key, T] = {}

        def keep(item: JsonObject) -> None:
            self._heard = time.monotonic()
            converted = self._source.convert(item)
            if converted is not None:
                items[_key(item)] = converted

        with self._open(query) as answer:
            version = read_list(answer.chunks(), keep)
        with self._lock:
            before, self._items = self._items, items
            self._version = version
            self._heard = time.monotonic()
            self._failure = None
            first, self._listed = not self._listed, True
        self._settled.set()
        both = [(before.get(key), items.get(key)) for key in {**before, **items}]
        changes = [pair for pair in both if pair[0] != pair[1]]
        for pair in changes:
            self._on_change(*pair)
        if first or any(self._source.matters(*pair) for pair in changes):
            self._changed()

    def _watch(self) -> None:
        """Takes in what changes after the version that is known, until the API server ends the watch."""
        seconds = self._watch_seconds * random.uniform(0.8, 1.0)  # noqa: S311 (jitter)
        query = {
            **dict(self._source.selectors),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        with self._open(query, seconds + self._grace_seconds) as answer:
            with self._lock:
                self._connected = True
            for event in lines(answer.chunks()):
                self._take(event["type"], event["object"])

    def _take(self, kind: str, item: JsonObject) -> None:
        if kind == "ERROR":
            raise _Outdated(f"{item.get('code')} {item.get('reason')}: {item.get('message')}")
        version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":  # it has a version and nothing else
            self._version = version
            return
        key = _key(item)
        after = None if kind == "DELETED" else self._source.convert(item)
        with self._lock:
            before = self._items.get(key)
            if after is not None:
                self._items[key] = after
            elif before is not None:
                del self._items[key]
            self._version = version
        if before != after:
            self._on_change(before, after)
            if self._source.matters(before, after):
                self._changed()

    @contextmanager
    def _open(self, query: dict[str, str], silence: float = READ_SECONDS) -> Iterator[Response]:
        """An answer that `stop` can cut."""
        with self._client.open(self._source.path, query, silence=silence) as answer:
            with self._lock:
                self._answer = answer
                if self._stopping.is_set():
                    answer.cut()
            try:
                yield answer
            finally:
                with self._lock:
                    self._answer = None

    def _lost(self, problem: str, failure: Exception | None = None) -> None:
        """Notes that nothing is heard from now on, and why."""
        with self._lock:
            if self._connected:
                self._connected, self._heard = False, time.monotonic()
            self._problem = problem
            self._failure = failure
        if failure is not None:
            self._settled.set()
            self._changed()


class Informers:
    """One reflector for each source that was asked for."""

    def __init__(self, client: Client, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed
        self._running: dict[ListWatch[Any], Informer[Any]] = {}

    def keep(self, sources: Iterable[ListWatch[Any]]) -> None:
        """Watches these from now on, all begun at once, and ends the other watches."""
        wanted = list(sources)
        for source in [source for source in self._running if source not in wanted]:
            self._running.pop(source).stop()
        for source in wanted:
            self.start(source)

    def start(self, source: ListWatch[Any]) -> None:
        """Watches this one, too, from now on."""
        if source not in self._running:
            self._running[source] = Informer(self._client, source, self._changed)
            self._running[source].start()

    def items(self, source: ListWatch[T]) -> tuple[T, ...]:
        """What is kept of a source that is watched. Waits for its first list, and raises as `Informer.items` does."""
        reflector: Informer[T] = self._running[source]
        return reflector.items()

    def close(self) -> None:
        """Ends every watch, and waits for a moment until they have ended."""
        ended = list(self._running.values())
        self._running.clear()
        for reflector in ended:
            reflector.stop()
        until = time.monotonic() + _CLOSING_SECONDS
        for reflector in ended:
            reflector.join(max(0.0, until - time.monotonic()))


def _key(item: JsonObject) -> Key:
    meta = item["metadata"]
    return str(meta.get("namespace") or ""), str(meta["name"])
