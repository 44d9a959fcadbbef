"""What was ever made in a namespace, read from the API server afterwards, and whether it is what should have been made.

A watch from an earlier version tells all that has happened since
(https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes), so that nothing is missed
that was there for a moment only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.figures import Figure
from tests.integration.local import kai
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Team, until
from tests.integration.local.torchrun_machine import INDEX
from trainyard.operator import names as n

_GONE = 410
# The prefix of what concerns the life before.
BEFORE = "before: "
_MORE, _LEFT, _AFTER = "made in addition", "left in addition", "after its end"


class Expired(Exception):
    """A life took so long that the API server does not have all of it any more (it keeps 75 s of a busy kind)."""


@dataclass(frozen=True)
class Change:
    """One event of a watch: ADDED, MODIFIED or DELETED, and the object then."""

    kind: str
    item: Mapping[str, Any]

    @property
    def version(self) -> int:
        """Versions of one store grow, whatever the object (KEP-5504; etcd's revisions)."""
        return int(self.item["metadata"]["resourceVersion"])


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a life of jobs has made.

    `made` counts what was made by kind, name and the kind of its owner ("" is nobody's), a worker by its place in its
    attempt; `left` is what is there at the end, a job with its status. `wrongs` names work that was started
    for a job that was over.
    """

    made: Counter[str]
    left: frozenset[str]
    wrongs: tuple[str, ...] = field(default=())


def differences(one: Made, undisturbed: Made) -> tuple[str, ...]:
    """In which a life differs from one in which nothing went wrong: each as a line."""
    more = [f"{_MORE}: {name} ({count} times)" for name, count in (one.made - undisturbed.made).items()]
    less = [f"never made: {name}" for name in undisturbed.made - one.made]
    left = [f"{_LEFT}: {name}" for name in sorted(one.left - undisturbed.left)]
    gone = [f"missing at the end: {name}" for name in sorted(undisturbed.left - one.left)]
    return (*one.wrongs, *more, *less, *left, *gone)


def figures(differing: Iterable[str]) -> list[Figure]:
    """Return the number of these lines of each kind; 0 is right."""
    kinds = Counter(_kind(each.removeprefix(BEFORE)) for each in differing)
    names = ("duplicates", "orphans", "re-runs", "missing")
    return [Figure(name=name, value=kinds[name], limit=0, unit="", digits=0) for name in names]


def _kind(line: str) -> str:
    what = line.partition(":")[0]
    return {_MORE: "duplicates", _LEFT: "orphans", _AFTER: "re-runs"}.get(what, "missing")


def read(team: Team, since: str) -> Made:
    """All that was made in the team's namespace since this version of the store."""
    paths = _paths(team)
    with ThreadPoolExecutor(len(paths)) as threads:  # each waits for a second
        found = threads.map(lambda path: _changes(team.server, path, since), paths.values())
        changes = dict(zip(paths, found, strict=True))
    return Made(
        made=Counter(
            _named(each.item).replace(team.name, "LIFE")
            for some in changes.values()
            for each in some
            if each.kind == "ADDED"
        ),
        left=left(team),
        wrongs=tuple(_started_after_the_end(changes)),
    )


def begin(team: Team) -> str:
    """The version of the store now. Caches that watches are answered from have at least this one afterwards."""

    def version(path: str) -> str:
        # A kind that has just been established is not served at once.
        return until(
            lambda: team.server.request("GET", path).body["metadata"].get("resourceVersion", ""), path
        )

    return max((version(path) for path in _paths(team).values()), key=int)


def left(team: Team) -> frozenset[str]:
    """What is there now."""
    return frozenset(
        _describe({**item, "kind": kind}).replace(team.name, "LIFE")
        for kind, path in _paths(team).items()
        for item in team.server.request("GET", path).body["items"]
    )


def _paths(team: Team) -> dict[str, str]:
    core = {"Pod": "pods", "Service": "services", "PersistentVolumeClaim": "persistentvolumeclaims"}
    made = {kind: team.core(plural) for kind, plural in core.items()}
    made |= {kind: team.path(kind) for kind in (n.JOB_KIND, n.QUEUE_KIND)}
    theirs = f"{kai.QUEUES}?labelSelector={n.LABEL_QUEUE_NAMESPACE}={team.name}"
    return {**made, "Job": team.batch(), "PodGroup": kai.gangs(team.name), "Queue": theirs}


def _changes(server: ApiServer, path: str, since: str) -> list[Change]:
    """Return all events since this version. A busy API server may not send them all within one short watch."""
    before: list[Change] | None = None
    for seconds in (1, 2, 4, 8, 16, 32):
        found = _watch(server, path, since, seconds)
        if found == before:
            return found
        before = found
    raise AssertionError(f"{path}: its events still change")


def _watch(server: ApiServer, path: str, since: str, seconds: int) -> list[Change]:
    """Return the events that the API server sends within these seconds."""
    and_ = "&" if "?" in path else "?"
    query = f"watch=1&resourceVersion={since}&timeoutSeconds={seconds}"
    raw = server.kubectl("get", "--raw", f"{path}{and_}{query}")
    assert raw.returncode == 0, raw.stderr
    read = [json.loads(line) for line in raw.stdout.splitlines()]
    if any(each["type"] == "ERROR" and each["object"].get("code") == _GONE for each in read):
        raise Expired(path)
    assert all(each["type"] in ("ADDED", "MODIFIED", "DELETED") for each in read), raw.stdout[-500:]
    return [Change(each["type"], each["object"]) for each in read]


def _named(item: Mapping[str, Any]) -> str:
    meta = item["metadata"]
    name, owners = (
        meta["name"],
        [each["kind"] for each in meta.get("ownerReferences") or [{"kind": "nobody"}]],
    )
    labels = meta.get("labels") or {}
    if INDEX in labels:  # the end of a worker's name is drawn by chance
        name = f"{meta['ownerReferences'][0]['name']}, worker {labels[INDEX]}"
    return f"{item['kind']} {name} of {', '.join(owners)}"


def _describe(item: Mapping[str, Any]) -> str:
    if item["kind"] == n.JOB_KIND:
        status = item.get("status") or {}
        shown = {
            key: status.get(key) for key in ("phase", "reason", "attempt", "restarts", "nodes", "exitCode")
        }
        return f"{_named(item)}: {json.dumps(shown)}"
    if item["kind"] == "Pod":
        return f"{_named(item)}: {item['status']['phase']}"
    return _named(item)


def _started_after_the_end(changes: Mapping[str, Iterable[Change]]) -> Iterable[str]:
    """Jobs that left a final phase, and what was made for one that was in it."""
    over: dict[str, Change] = {}
    for each in changes[n.JOB_KIND]:
        uid, phase = each.item["metadata"]["uid"], (each.item.get("status") or {}).get("phase")
        if phase in n.FINAL_PHASES:
            over.setdefault(uid, each)
        elif uid in over:
            yield f"{_AFTER}: {_named(each.item)} is {phase} again"
    for kind in ("Job", "Service", "PodGroup"):
        for each in changes[kind]:
            for owner in each.item["metadata"].get("ownerReferences") or []:
                end = over.get(owner["uid"])
                if end is not None and each.kind == "ADDED" and each.version > end.version:
                    yield f"{_AFTER}: {_named(each.item)} was made"
