"""A decision about a queue or a job, carried out: writes one by one, in its order, and nothing after one that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from launcher.error_lines import strip_control_characters
from launcher.manifests import stamp
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of
from trainyard.operator.core import names as n
from trainyard.operator.core.decision import Decision, Event
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.status_schema import fit_status

log = logging.getLogger(__name__)

# An Event's message may have 1024 characters (k8s.io/kubernetes, pkg/apis/core/validation/events.go).
_MESSAGE_LENGTH = 1024
_TRIES = 5
# A machine is given back with all that is on it. That is nothing of this job while it waits for machines, and by now it
# may have begun.
_MACHINE = "NodeClaim"


def carry_out(
    decision: Decision, item: JsonObject, objects: Objects, *, now: Callable[[], float] = time.time
) -> str:
    """Do what was decided about `item`, as it was read.

    Returns "" when all is done, else what was in the way: the path of an object that has a name that was to be taken,
    or the item's own where that has changed since. The next decision is to know what is there. Raises ApiError and
    ApiUnavailable; what was done until then is found by the next decision.
    """
    if any(each.kind == _MACHINE for each in decision.removals) and not _is_as_read(objects, item):
        return path_of(item)
    for each in decision.removals:
        path = f"{collection(each.api_version, each.kind, each.namespace)}/{each.name}"
        objects.delete(path, each.uid, each.version, foreground=each.foreground)
    for manifest in decision.makes:
        if not objects.create(manifest):
            return path_of(manifest)
    for manifest in decision.changes:
        if not objects.change(manifest):
            return path_of(manifest)
    if decision.finalizers is not None and not objects.put_finalizers(item, decision.finalizers):
        return path_of(item)
    status = None if decision.status is None else fit_status(item["kind"], decision.status)
    if status is not None and status == item.get("status"):
        return ""  # only invalid values changed
    if status is not None and not _told(objects, item, status):
        return path_of(item)
    for event in decision.events:
        try:
            objects.create(_event(event, item, now()))
        except ApiError as error:  # an Event is only information
            log.warning("%s: no Event recorded: %s", path_of(item), error)
    return ""


def _told(objects: Objects, item: JsonObject, status: JsonObject) -> bool:
    """Puts the status over what was read, or over what differs from it in labels and annotations alone.

    Somebody who writes those all the time would let no status be put, else.
    """
    latest: JsonObject | None = item
    for _ in range(_TRIES):
        if objects.put_status({**(latest or item), "status": status}) is not None:
            return True
        latest = objects.get(path_of(item))
        if not _decides_the_same(latest, item):
            return False
    return False


def _is_as_read(objects: Objects, item: JsonObject) -> bool:
    return _decides_the_same(objects.get(path_of(item)), item)


def _decides_the_same(latest: JsonObject | None, item: JsonObject) -> bool:
    return latest is not None and _decides(latest) == _decides(item)


def _decides(item: JsonObject) -> list[Any]:
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
