"""One look at a job: what there is, what is decided, what is done. Everything is read anew for each."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from launcher.controller.carry import carry_out
from launcher.controller.facts import Facts
from launcher.core.torchrun import jobs
from launcher.core.torchrun import names as n
from launcher.core.torchrun.reading import JsonObject
from launcher.kube.objects import Objects, collection, path_of

# What jobs have made for them; the last only where KAI Scheduler is installed.
CHILDREN = (
    ("batch/v1", "Job"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "PersistentVolumeClaim"),
)
_GANG = (f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}", "PodGroup")
# Until something that was in the way is seen: a write of somebody else that came first.
SOON_SECONDS = 0.2


class Reconciler:
    """Looks at jobs. Several threads may, each at another job."""

    def __init__(self, objects: Objects, facts: Facts, *, now: Callable[[], float] = time.time) -> None:
        self._objects = objects
        self._facts = facts
        self._now = now
        # Paths of names that a job needs and that something without its label has.
        self._taken: dict[str, set[str]] = defaultdict(set)

    def job(self, namespace: str, name: str) -> float | None:
        """Do what is due; returns in how many seconds something is due again. May raise ApiError and ApiUnavailable."""
        path = f"{collection(n.API_VERSION, n.JOB_KIND, namespace)}/{quote(name)}"
        item = self._objects.get(path)
        if item is None:
            self._taken.pop(path, None)
            return None
        queue = self._queue(namespace, item.get("spec"))
        cluster = self._facts.cluster(namespace, claims=_names_claims(item, queue))
        seen = self._children(namespace, name, gang=cluster.kai)
        there = {path_of(each) for each in seen}
        for other in self._taken[path] - there:
            found = self._objects.get(other)
            if found is None:
                self._taken[path].discard(other)
            else:
                seen.append(found)
        decision = jobs.decide(item, queue, seen, cluster, self._now())
        blocked = carry_out(decision, item, self._objects, now=self._now)
        if not blocked:
            return decision.again
        if blocked != path:
            self._taken[path].add(blocked)
        return SOON_SECONDS

    def _queue(self, namespace: str, spec: Any) -> JsonObject | None:
        name = spec.get("jobQueue") if isinstance(spec, dict) else None
        if not isinstance(name, str) or not name:
            return None
        return self._objects.get(
            f"{collection(n.API_VERSION, n.QUEUE_KIND, namespace)}/{quote(name, safe='')}"
        )

    def _children(self, namespace: str, name: str, *, gang: bool) -> list[JsonObject]:
        found: list[JsonObject] = []
        for version, kind in (*CHILDREN, *((_GANG,) if gang else ())):
            found += self._objects.list(version, kind, namespace, f"{n.LABEL_JOB}={name}")
        return found


def _names_claims(item: JsonObject, queue: JsonObject | None) -> bool:
    """Whether a claim is used as it is: only then the claims of the namespace matter."""
    return "existingClaim" in json.dumps([item.get("spec"), queue and queue.get("spec")])
