"""The queues of KAI Scheduler: what is above one, and how many GPUs its gangs may have at most. Pure.

github.com/kai-scheduler/KAI-Scheduler v0.17.0, pkg/apis/scheduling/v2: resources.gpu.limit is a number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from launcher.core.torchrun.reading import JsonObject


@dataclass(frozen=True, kw_only=True)
class KaiQueue:
    """`parent` is "" for one at the top; `most_gpus` is None where no limit is said, or -1, which is none."""

    parent: str = ""
    most_gpus: float | None = None


def read(item: JsonObject) -> KaiQueue:
    """A Queue as the API server shows it; other versions of KAI may say things in other ways."""
    spec = item.get("spec") or {}
    resources = spec.get("resources")
    gpu = resources.get("gpu") if isinstance(resources, dict) else None
    limit = gpu.get("limit") if isinstance(gpu, dict) else None
    said = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0
    return KaiQueue(parent=str(spec.get("parentQueue") or ""), most_gpus=limit if said else None)


def missing(queues: Mapping[str, KaiQueue], name: str) -> str:
    """The first that is not there, of this queue and those above it; "" where all are."""
    return next((each for each in _upwards(queues, name) if each not in queues), "")


def tightest(queues: Mapping[str, KaiQueue], name: str) -> tuple[str, float] | None:
    """The queue with the lowest limit, of this one and those above it, and the limit; None without any."""
    there = [each for each in _upwards(queues, name) if each in queues]
    limits = [(limit, each) for each in there if (limit := queues[each].most_gpus) is not None]
    return min(((each, limit) for limit, each in limits), key=lambda pair: pair[1], default=None)


def inside(name: str, items: Iterable[JsonObject]) -> list[str]:
    """Which of these PodGroups and Queues are right in the queue of this name, by kind and name."""
    found = []
    for each in items:
        meta, spec = each["metadata"], each.get("spec") or {}
        above = spec.get("queue" if each["kind"] == "PodGroup" else "parentQueue")
        if above == name and (each["kind"], meta["name"]) != ("Queue", name):
            placed = f"{meta['namespace']}/" if meta.get("namespace") else ""
            found.append(f"{each['kind']} {placed}{meta['name']}")
    return sorted(found)


def _upwards(queues: Mapping[str, KaiQueue], name: str) -> Iterator[str]:
    """This queue and those above it; a circle, which KAI does not keep anybody from making, once."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = queues[name].parent if name in queues else ""
