"""What a look at a queue or a job comes to: writes in their order, and when to look again. Pure.

Whoever carries it out reads everything anew before each decision, then does

1. each `Removal`, of exactly the object that was seen,
2. each `make`: a creation. Where an object of that name is there already, nothing after it is done; the next decision
   is given that object, too,
3. each `change`: a server-side apply with the uid of what was seen, so that another object of the name is left alone,
4. `finalizers`: all that the queue or job is to have from now on, put over what was read and nothing newer,
5. `status`, by a PUT with the resourceVersion of the queue or job as it was read, or of one whose labels and
   annotations alone have changed since; nothing is told where that fails,
6. each `Event`.

It may stop, or be stopped, after any of them: the next decision comes to the same end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from launcher.errors import strip_control_characters
from launcher.manifests import stamp
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.status import fit_status

log = logging.getLogger(__name__)

# What is known of the cluster may be older than the news that a scheduler is installed, after which nothing is heard.
SCHEDULER_SECONDS: Final = 60.0
# Until what nobody tells of is looked for again: claims, priority classes, webhooks, names that others have.
POLL_SECONDS: Final = 30.0
# The interval at which a queue's status is updated with the limits of its pool.
POOL_SECONDS: Final = 60.0
NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """Delete exactly this object, and with `version` only as it was read; `foreground`: after all that it owns."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""
    foreground: bool = False


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that people may want to know: `type` Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ReconcilePlan:
    """See above. `finalizers` or `status` None: it is as it should be.

    `again` is seconds from now, None where nothing is due.

    `recount` asks for another decision at once, from lists of the pool that are read from the store itself; there is
    nothing else in it then.
    """

    deletions: tuple[Deletion, ...] = ()
    creations: tuple[JsonObject, ...] = ()
    patches: tuple[JsonObject, ...] = ()
    finalizers: tuple[str, ...] | None = None
    status: JsonObject | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    recount: bool = False


def deletion(item: JsonObject, *, foreground: bool = False, as_read: bool = False) -> Deletion:
    """The removal of an object as the API showed it."""
    meta = item["metadata"]
    return Deletion(
        api_version=item["apiVersion"],
        kind=item["kind"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"] if as_read else "",
        foreground=foreground,
    )


def contains(live: object, wanted: object) -> bool:
    """Whether everything that is wanted is so; what else is there is somebody else's."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and contains(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and all(any(contains(one, each) for one in live) for each in wanted)
    return live == wanted


def deletions_of(items: Iterable[JsonObject]) -> list[Deletion]:
    return [deletion(each) for each in items if "deletionTimestamp" not in each["metadata"]]


# An Event's message may have 1024 characters (k8s.io/kubernetes, pkg/apis/core/validation/events.go).
_MESSAGE_LENGTH = 1024
_TRIES = 5
# A machine is given back with all that is on it. That is nothing of this job while it waits for machines, and by now it
# may have begun.
_NODE_CLAIM = "NodeClaim"


def apply_plan(
    decision: ReconcilePlan, item: JsonObject, objects: Objects, *, now: Callable[[], float] = time.time
) -> str:
    """Do what was decided about `item`, as it was read.

    Returns "" when all is done, else what was in the way: the path of an object that has a name that was to be taken,
    or the item's own where that has changed since. The next decision is to know what is there. Raises ApiError and
    ApiUnavailable; what was done until then is found by the next decision.
    """
    if any(each.kind == _NODE_CLAIM for each in decision.deletions) and not _is_unchanged(objects, item):
        return path_of(item)
    for each in decision.deletions:
        path = f"{collection(each.api_version, each.kind, each.namespace)}/{each.name}"
        objects.delete(path, each.uid, each.version, foreground=each.foreground)
    for manifest in decision.creations:
        if not objects.create(manifest):
            return path_of(manifest)
    for manifest in decision.patches:
        if not objects.change(manifest):
            return path_of(manifest)
    if decision.finalizers is not None and not objects.put_finalizers(item, decision.finalizers):
        return path_of(item)
    status = None if decision.status is None else fit_status(item["kind"], decision.status)
    if status is not None and status == item.get("status"):
        return ""  # only invalid values changed
    if status is not None and not _put_status(objects, item, status):
        return path_of(item)
    for event in decision.events:
        try:
            objects.create(_event(event, item, now()))
        except ApiError as error:  # an Event is only information
            log.warning("%s: no Event recorded: %s", path_of(item), error)
    return ""


def _put_status(objects: Objects, item: JsonObject, status: JsonObject) -> bool:
    """Puts the status over what was read, or over what differs from it in labels and annotations alone.

    Somebody who writes those all the time would let no status be put, else.
    """
    latest: JsonObject | None = item
    for _ in range(_TRIES):
        if objects.put_status({**(latest or item), "status": status}) is not None:
            return True
        latest = objects.get(path_of(item))
        if not _is_same_input(latest, item):
            return False
    return False


def _is_unchanged(objects: Objects, item: JsonObject) -> bool:
    return _is_same_input(objects.get(path_of(item)), item)


def _is_same_input(latest: JsonObject | None, item: JsonObject) -> bool:
    return latest is not None and _plan_input(latest) == _plan_input(item)


def _plan_input(item: JsonObject) -> list[Any]:
    """All of it that a decision is made from."""
    meta = [item["metadata"].get(key) for key in ("uid", "generation", "deletionTimestamp", "finalizers")]
    return [*meta, item.get("spec"), item.get("status")]


def _event(event: Event, item: JsonObject, now: float) -> JsonObject:
    """A v1 Event on the item."""
    meta = item["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{int(now * 1e6):x}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": strip_control_characters(event.message)[:_MESSAGE_LENGTH],
        "source": {"component": n.CONTROLLER},
        "reportingComponent": n.CONTROLLER,
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
