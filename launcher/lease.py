"""The Lease by which one launcher at a time acts for a run: its object, and whose it is. Pure: clocks are inputs.

The rules are those of leader election in client-go (k8s.io/client-go v0.35.4, tools/leaderelection/leaderelection.go):
no two machines' clocks are compared. A Lease is free when it has no holder, or when it has not changed for its duration
while somebody looked on, by the onlooker's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from launcher.manifests import Owner, labels, owner_reference, stamp
from launcher.request import Request
from trainyard.k8s import names

JsonObject = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What of a Lease says whose it is. `renewed` is the holder's stamp, of which only the change matters."""

    holder: str
    renewed: str
    transitions: int


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A record of another holder, and since when it has been seen like this, in seconds of the onlooker's clock."""

    record: Record
    since: float


class Standing(Enum):
    """What a Lease is to a launcher that wants it."""

    FREE = "free"
    OURS = "ours"
    UNSURE = "unsure"
    """Another holder, of which is not known whether it lives."""
    TAKEN = "taken"
    """Another holder, which was seen to live."""


def record(item: Mapping[str, Any]) -> Record:
    """A coordination.k8s.io/v1 Lease."""
    spec = item.get("spec", {})
    return Record(
        holder=spec.get("holderIdentity") or "",
        renewed=spec.get("renewTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def standing(
    found: Record | None, holder: str, before: Watched | None, now: float
) -> tuple[Standing, Watched | None]:
    """What the Lease that was found is to `holder`, and what to remember of it until the next look.

    `before` is what was remembered at the last look and `now` the onlooker's clock, in seconds.
    """
    if found is None or not found.holder:
        return Standing.FREE, None
    if found.holder == holder:
        return Standing.OURS, None
    if before is None:
        return Standing.UNSURE, Watched(record=found, since=now)
    if before.record != found:
        return Standing.TAKEN, Watched(record=found, since=now)
    return (Standing.FREE if now - before.since >= names.LEASE_SECONDS else Standing.UNSURE), before


def manifest(request: Request, owner: Owner, holder: str, now: float) -> JsonObject:
    """The first Lease of a run. `now` is seconds since the epoch."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": request.lease,
            "namespace": request.namespace,
            "labels": labels(request, names.ROLE_LAUNCHER),
            "annotations": {},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": names.LEASE_SECONDS,
            "acquireTime": stamp(now, "microseconds"),
            "renewTime": stamp(now, "microseconds"),
            "leaseTransitions": 0,
        },
    }


def taken(item: JsonObject, request: Request, owner: Owner, holder: str, now: float) -> JsonObject:
    """The Lease with a new holder. What an earlier Job of the same name noted is none of this one's business."""
    meta, mine = item["metadata"], owner_reference(owner)
    ours = any(reference.get("uid") == owner.uid for reference in meta.get("ownerReferences") or ())
    fresh = manifest(request, owner, holder, now)
    return {
        **item,
        "metadata": {
            **meta,
            "annotations": (meta.get("annotations") or {}) if ours else {},
            "ownerReferences": [mine],
        },
        "spec": {**fresh["spec"], "leaseTransitions": record(item).transitions + 1},
    }


def renewed(item: JsonObject, progress: str, now: float) -> JsonObject:
    """The Lease, renewed, with this progress; without one if that is empty."""
    meta = item["metadata"]
    noted = {names.ANNOTATION_ATTEMPT: progress} if progress else {}
    return {
        **item,
        "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **noted}},
        "spec": {**item["spec"], "renewTime": stamp(now, "microseconds")},
    }


def released(item: JsonObject, progress: str, now: float) -> JsonObject:
    """The Lease without a holder, as client-go leaves it with ReleaseOnCancel."""
    kept = renewed(item, progress, now)
    spec = {
        **kept["spec"],
        "holderIdentity": None,
        "leaseDurationSeconds": 1,
        "acquireTime": stamp(now, "microseconds"),
    }
    return {**kept, "spec": spec}


def noted(item: Mapping[str, Any]) -> str:
    """The progress that stands on a Lease; empty where there is none."""
    return str((item["metadata"].get("annotations") or {}).get(names.ANNOTATION_ATTEMPT) or "")
