"""Compute the limits of KAI Scheduler's queues and the queues above them. Pure.

github.com/kai-scheduler/KAI-Scheduler v0.17.0, pkg/apis/scheduling/v2 and docs/queues/README.md: `limit` of
spec.resources is a number of GPUs, of thousandths of a core, and of megabytes (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from trainyard.operator.core.reading import JsonObject

GPU: Final = "gpu"
# A resource of KAI's Queue -> what one of its units is in the units of pods: GPUs, cores, bytes.
UNITS: Final[Mapping[str, Fraction | int]] = {GPU: 1, "cpu": Fraction(1, 1000), "memory": 10**6}


@dataclass(frozen=True, kw_only=True)
class KaiQueue:
    """A queue of KAI. `parent` is "" for one at the top.

    `limits` are in GPUs, cores and bytes, without those that are not set or -1, which is none.
    """

    parent: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The lowest limit of a resource and the queue that has it."""

    queue: str
    most: float


def read(item: JsonObject) -> KaiQueue:
    """Convert a Queue from the API server."""
    spec = item.get("spec") or {}
    resources = spec.get("resources")
    found = {name: _limit(resources.get(name)) for name in UNITS} if isinstance(resources, dict) else {}
    limits = {name: float(limit * UNITS[name]) for name, limit in found.items() if limit is not None}
    return KaiQueue(parent=str(spec.get("parentQueue") or ""), limits=limits)


def _limit(resource: Any) -> float | None:
    limit = resource.get("limit") if isinstance(resource, dict) else None
    said = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0
    return limit if said else None


def find_missing(queues: Mapping[str, KaiQueue], name: str) -> str:
    """Return the first missing queue, of this queue and those above it; "" if all exist."""
    return next((each for each in _upwards(queues, name) if each not in queues), "")


def lowest_limits(queues: Mapping[str, KaiQueue], name: str) -> dict[str, Limit]:
    """Return the lowest limit of each resource, of this queue and those above it."""
    found: dict[str, Limit] = {}
    for each in _upwards(queues, name):
        for resource, most in queues[each].limits.items() if each in queues else ():
            if resource not in found or most < found[resource].most:
                found[resource] = Limit(queue=each, most=most)
    return found


def list_children(name: str, items: Iterable[JsonObject]) -> list[str]:
    """Return the PodGroups and Queues that are directly in the queue with this name, by kind and name."""
    found = []
    for each in items:
        meta, spec = each["metadata"], each.get("spec") or {}
        above = spec.get("queue" if each["kind"] == "PodGroup" else "parentQueue")
        if above == name and (each["kind"], meta["name"]) != ("Queue", name):
            placed = f"{meta['namespace']}/" if meta.get("namespace") else ""
            found.append(f"{each['kind']} {placed}{meta['name']}")
    return sorted(found)


def _upwards(queues: Mapping[str, KaiQueue], name: str) -> Iterator[str]:
    """Yield this queue and those above it. KAI allows cycles, in which each queue is yielded once."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = queues[name].parent if name in queues else ""
