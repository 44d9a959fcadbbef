"""What the fake API server stores: objects by path, every change of them with its version, and watches of them."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
_IDLE_SECONDS = 0.01
# Fields that a selector calls otherwise (kubernetes 1.35, pkg/registry/core/event/strategy.go: ToSelectableFields).
_NAMED_OTHERWISE = {"source": "source.component"}


@dataclass(frozen=True)
class Change:
    """`before` and `after` are the object; None where there was none or is none."""

    version: int
    path: str
    before: Object | None
    after: Object | None


def field_value(item: Object, field: str) -> Any:
    """A field by its path, such as `status.phase`; empty if it is not there."""
    value: Any = item
    for name in field.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return value


def selects(path: str, query: dict[str, str], key: str, item: Object) -> bool:
    """Whether the list at this path has the object at `key`, by its selectors."""
    group, _, plural = path.rpartition("/")
    namespaced = re.fullmatch(f"{re.escape(group)}/namespaces/[^/]+/{plural}", key.rpartition("/")[0])
    if key.rpartition("/")[0] != path and not namespaced:
        return False
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, query.get("labelSelector", "").split(",")):
        label, equal, value = part.partition("=")
        if label not in labels or (equal and labels[label] != value):
            return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        field, equal, value = part.rpartition("!=") if "!=" in part else part.partition("=")
        if (field_value(item, _NAMED_OTHERWISE.get(field, field)) == value) != (equal == "="):
            return False
    return True


class History:
    """`news` guards everything and signals changes. A watch sends a bookmark every `bookmark_seconds`.

    Watches of versions up to `gone` end with 410. While `mute`, watches neither say anything nor end.
    """

    def __init__(self) -> None:
        self.news = threading.Condition(threading.RLock())
        self.objects: dict[str, Object] = {}
        self.changes: list[Change] = []
        self.version = 100
        self.gone = 0
        self.mute = False
        self.bookmark_seconds = 60.0
        self.watching = 0
        self._uids = 0
        self._drops = 0
        self._expiries = 0
        self._ended = False

    def put(self, path: str, item: Object) -> Object:
        """Makes or replaces the object at this path."""
        with self.news:
            self._uids += 1
            item["metadata"].setdefault("uid", f"uid-{self._uids}")
            self._change(path, copy.deepcopy(item))
            return self.objects[path]

    def remove(self, path: str) -> Object:
        with self.news:
            gone = self.objects[path]
            self._change(path, None)
            return gone

    def drop(self) -> None:
        """Closes the connection of every open watch in the middle of a line."""
        with self.news:
            self._drops += 1
            self.news.notify_all()

    def expire(self, *, tell: bool) -> None:
        """Forgets the history so far; with `tell`, open watches end with a 410 at once."""
        with self.news:
            self.gone = self.version
            self.version += 1
            self._expiries += tell
            self.news.notify_all()

    def end(self) -> None:
        """Ends every watch, for the end of the server."""
        with self.news:
            self._ended = True
            self.news.notify_all()

    def is_gone(self, query: dict[str, str]) -> bool:
        return int(query["resourceVersion"]) <= self.gone

    def listed(self, path: str, query: dict[str, str], version: int) -> list[Object]:
        """What the list had at this version."""
        objects = dict(self.objects)
        for change in reversed(self.changes):
            if change.version <= version:
                break
            objects.pop(change.path, None)
            if change.before is not None:
                objects[change.path] = change.before
        return [item for key, item in objects.items() if selects(path, query, key, item)]

    def watch(self, path: str, query: dict[str, str]) -> Iterator[bytes | None]:
        """The lines of a watch; a None after a part of a line closes the connection. Nothing often comes as b""."""
        with self.news:
            self.watching += 1
            drops, expiries = self._drops, self._expiries
        try:
            yield from self._watch(path, query, drops, expiries)
        finally:
            with self.news:
                self.watching -= 1

    def _watch(self, path: str, query: dict[str, str], drops: int, expiries: int) -> Iterator[bytes | None]:
        version = int(query["resourceVersion"])
        until = time.monotonic() + float(query["timeoutSeconds"])
        bookmark = time.monotonic() + self.bookmark_seconds
        if self.is_gone(query):
            yield _line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
            return
        while not self._ended:
            lines: list[bytes] = []
            with self.news:
                now = time.monotonic()
                if not self.mute:
                    for change in self._since(version):
                        lines += _event(path, query, change)
                    version = self.version
                    if now >= bookmark and "allowWatchBookmarks" in query:
                        bookmark = now + self.bookmark_seconds
                        lines.append(self._bookmark())
                dropped, expired = self._drops != drops, self._expiries != expiries
                ended = now >= until and not self.mute
                if not (lines or dropped or expired or ended):
                    due = _IDLE_SECONDS if self.mute else min(_IDLE_SECONDS, until - now, bookmark - now)
                    self.news.wait(max(0.001, due))
            if dropped:
                *whole, last = lines or [self._bookmark()]
                yield b"".join(whole) + last[: len(last) // 2]
                yield None
                return
            yield b"".join(lines)
            if expired:
                yield _line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"})
            if expired or ended:
                return

    def _since(self, version: int) -> list[Change]:
        found = []
        for change in reversed(self.changes):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    def _bookmark(self) -> bytes:
        return _line("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def _change(self, path: str, after: Object | None) -> None:
        self.version += 1
        before = self.objects.pop(path, None)
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
            self.objects[path] = after
        self.changes.append(Change(self.version, path, before, after))
        self.news.notify_all()


def _event(path: str, query: dict[str, str], change: Change) -> list[bytes]:
    """What this change is for one watch: an object that no longer matches is a deleted one there."""
    was = change.before is not None and selects(path, query, change.path, change.before)
    is_ = change.after is not None and selects(path, query, change.path, change.after)
    if is_ and change.after is not None:
        return [_line("MODIFIED" if was else "ADDED", change.after)]
    if was and change.before is not None:
        item = copy.deepcopy(change.after or change.before)
        item["metadata"]["resourceVersion"] = str(change.version)
        return [_line("DELETED", item)]
    return []


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"
