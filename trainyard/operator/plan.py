"""The plan of a reconcile: its writes in order, and when to requeue. `apply_plan` writes it.

Each reconcile reads all objects again. Then `apply_plan` does

1. each `Deletion`, of exactly the object that was read,
2. each creation. If an object of the name exists, it stops, and the next plan gets that object as well,
3. each patch: a server-side apply with the uid of the object that was read,
4. `finalizers`: the complete list, if the object has not changed,
5. `status`: a PUT with the resourceVersion that was read, or a later one with other labels and annotations only,
6. the resume of each Job that it has created suspended, now that the status names its attempt,
7. each `Event`.

It may stop after any of them, because the next plan leads to the same result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from launcher.errors import strip_control_characters
from launcher.manifests import build_event
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.status import fit_status

log = logging.getLogger(__name__)

# An Event's message may have 1024 characters (k8s.io/kubernetes, pkg/apis/core/validation/events.go).
_MESSAGE_LENGTH = 1024
_MAX_LISTED = 3
# Writes of a status, while other clients change labels or annotations.
_STATUS_TRIES = 5
# The interval of checks for a missing scheduler or policy. No watch reports it.
SCHEDULER_SECONDS: Final = 60.0
# The interval for changes that no watch reports: claims, priority classes, webhooks, foreign objects.
POLL_SECONDS: Final = 30.0
# The interval at which a queue's status is updated with the limits of its pool.
POOL_SECONDS: Final = 60.0
# The interval at which the progress of a running job is read.
PROGRESS_SECONDS: Final = 10.0
NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """The deletion of exactly one object.

    With `version`, it is deleted only if it has not changed; with `foreground`, after the objects that it owns.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""
    foreground: bool = False


@dataclass(frozen=True, kw_only=True)
class Event:
    """An Event on the job or queue. `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ReconcilePlan:
    """The writes of a reconcile, in the order of the module docstring."""

    deletions: tuple[Deletion, ...] = ()
    creations: tuple[JsonObject, ...] = ()
    patches: tuple[JsonObject, ...] = ()
    finalizers: tuple[str, ...] | None = None  # None for no change
    status: JsonObject | None = None  # None for no change
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None  # seconds until the next reconcile is due, None for never
    recount: bool = False  # Read the pool without caches and plan again. Then the plan has nothing else.


def deletion(item: JsonObject, *, foreground: bool = False, as_read: bool = False) -> Deletion:
    """Return the deletion of this object; with `as_read`, only if it has not changed since the read."""
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


def deletions_of(items: Iterable[JsonObject]) -> list[Deletion]:
    """Return the deletions of those objects that are not being deleted."""
    return [deletion(item) for item in items if "deletionTimestamp" not in item["metadata"]]


def resume_patch(job: JsonObject) -> JsonObject:
    """Return the patch that resumes exactly this batch/v1 Job."""
    named = {key: job["metadata"][key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": {"suspend": False}}


def contains(live: object, wanted: object) -> bool:
    """Return whether the live object has all wanted values. Others may have added keys to an object."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        return all(key in live and contains(live[key], value) for key, value in wanted.items())
    return live == wanted


def list_first(objects: Sequence[str]) -> str:
    """Return the first objects for a message, and the number of the others."""
    more = f" and {len(objects) - _MAX_LISTED} more" if len(objects) > _MAX_LISTED else ""
    return f"{', '.join(objects[:_MAX_LISTED])}{more}"


def apply_plan(
    plan: ReconcilePlan, item: JsonObject, objects: Objects, *, now: Callable[[], float] = time.time
) -> str:
    """Write a plan for `item`, as it was read.

    Returns:
        "" if everything was written. Otherwise the path of the object in conflict: one with a needed name, or `item`
        itself if it has changed. The next plan must know that object.

    Raises:
        ApiError, ApiUnavailable: The next plan sees what was written until then.
    """
    # The deletion of a NodeClaim deletes the pods of its node. The job has no pods there, unless it started meanwhile.
    if (
        any(deleted.kind == "NodeClaim" for deleted in plan.deletions)
        and _read_unchanged(objects, item) is None
    ):
        return path_of(item)
    # An object may be missing because the job was deleted with it. So read the job again before creating anything. A
    # new job needs no read, because the garbage collector deletes what a deleted job owns. A pod may be a placeholder,
    # for which Karpenter adds a node at once.
    is_harmless = all(
        manifest["metadata"].get("ownerReferences") and manifest["kind"] != "Pod"
        for manifest in plan.creations
    )
    if plan.creations and (item.get("status") or not is_harmless) and not _still_exists(objects, item):
        return path_of(item)
    for deleted in plan.deletions:
        path = f"{collection(deleted.api_version, deleted.kind, deleted.namespace)}/{deleted.name}"
        objects.delete(path, deleted.uid, deleted.version, foreground=deleted.foreground)
    jobs: list[JsonObject] = []
    for manifest in plan.creations:
        created = objects.create(manifest)
        if created is None:
            return path_of(manifest)
        if manifest["kind"] == "Job":
            jobs.append(created)
    for manifest in plan.patches:
        if not objects.change(manifest):
            return path_of(manifest)
    if plan.finalizers is not None and not objects.put_finalizers(item, plan.finalizers):
        return path_of(item)
    status = None if plan.status is None else fit_status(item["kind"], plan.status)
    if status is not None and status == item.get("status"):
        return ""  # only invalid values changed
    if status is not None and not _put_status(objects, item, status):
        return path_of(item)
    for job in jobs:  # otherwise the next reconcile would resume it, some 70 ms later
        objects.change(resume_patch(job))  # the next plan sees if this Job is gone
    for event in plan.events:
        message = strip_control_characters(event.message)[:_MESSAGE_LENGTH]
        fields = {"kind": event.type, "reason": event.reason, "message": message}
        try:
            objects.create(build_event(item, n.CONTROLLER, now=now(), **fields))
        except ApiError as error:  # an Event is only information
            log.warning("%s: no Event recorded: %s", path_of(item), error)
    return ""


def _put_status(objects: Objects, item: JsonObject, status: JsonObject) -> bool:
    """Replace the status, also if only labels and annotations have changed since the read.

    Otherwise, a writer that often changes them would block the status.
    """
    latest: JsonObject | None = item
    for _ in range(_STATUS_TRIES):
        if latest is None:
            return False
        if objects.put_status({**latest, "status": status}) is not None:
            return True
        latest = _read_unchanged(objects, item)
    return False


def _still_exists(objects: Objects, item: JsonObject) -> bool:
    """Read the object again, and return whether it is the same one and is not being deleted."""
    meta = (objects.get(path_of(item)) or {}).get("metadata") or {}
    keys = ("uid", "deletionTimestamp")
    return all(meta.get(key) == item["metadata"].get(key) for key in keys)


def _read_unchanged(objects: Objects, item: JsonObject) -> JsonObject | None:
    """Read the object again; None if it is gone, or if something has changed that a plan depends on."""

    def inputs(one: JsonObject) -> list[Any]:
        meta = [one["metadata"].get(key) for key in ("uid", "generation", "deletionTimestamp", "finalizers")]
        return [*meta, one.get("spec"), one.get("status")]

    latest = objects.get(path_of(item))
    return latest if latest is not None and inputs(latest) == inputs(item) else None
