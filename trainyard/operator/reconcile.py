"""One look at a job or a queue: what there is, what is decided, what is done. Everything is read anew for each."""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from launcher.observe import Observation
from trainyard.k8s.client import ApiError
from trainyard.k8s.objects import Objects, collection, path_of
from trainyard.operator import progress
from trainyard.operator.asking import Ask, Asking
from trainyard.operator.carry import carry_out
from trainyard.operator.core import jobs, lost_workspace, nodes, observe, queues, refused, storage
from trainyard.operator.core import names as n
from trainyard.operator.core.decision import Decision
from trainyard.operator.core.queues import Trial
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.storage import Cluster
from trainyard.operator.facts import Facts
from trainyard.operator.pools import Pace, Pools

# What jobs have made for them; a gang only where KAI Scheduler is installed.
_JOB, _POD = ("batch/v1", "Job"), ("v1", "Pod")
_OTHERS = (("v1", "Service"), ("v1", "PersistentVolumeClaim"))
_GANG = (f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}", "PodGroup")
_KAI_QUEUE = (f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "Queue")
# The API server has read the pod and does not take it: refused by admission, or wrong.
_JUDGED = (400, 403, 422)
# Reasons to wait, or to fail, that what was known of the cluster may be too old for.
_BY_FACTS = (
    n.REASON_STORAGE_CLASS_NOT_FOUND,
    n.REASON_INVALID_SPEC,
    n.REASON_KAI_QUEUE_NOT_FOUND,
    n.REASON_KAI_QUEUE_LIMIT,
)
log = logging.getLogger(__name__)

# Until something that was in the way is seen: a write of somebody else that came first.
SOON_SECONDS = 0.2


class Reconciler:
    """Looks at jobs and queues. Several threads may, each at another one."""

    def __init__(
        self,
        objects: Objects,
        facts: Facts,
        *,
        now: Callable[[], float] = time.time,
        ask: Ask = progress.ask,
    ) -> None:
        self._objects = objects
        self._facts = facts
        self._now = now
        self._asking = Asking(now, ask)
        self._pools = Pools(objects)
        self._pace = Pace()
        # Paths of names that a job or queue needs and that something without its labels has.
        self._taken: dict[str, set[str]] = defaultdict(set)

    def job(self, namespace: str, name: str) -> float | None:
        """Do what is due; returns in how many seconds something is due again. May raise ApiError and ApiUnavailable."""
        path = f"{collection(n.API_VERSION, n.JOB_KIND, namespace)}/{quote(name)}"
        item = self._objects.get(path)
        if item is None:
            self._taken.pop(path, None)
            self._asking.forget(path)
            self._pace.paced(path, None)
            return None
        with self._telling(item):
            return self._job(path, item)

    def _job(self, path: str, item: JsonObject) -> float | None:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        queue = self._queue(namespace, item.get("spec"))
        pool = nodes.pool_to_count(item, queue)
        claims = _names_claims(item, queue)
        cluster = self._facts.cluster(namespace, claims=claims)
        if pool:
            cluster = replace(cluster, placeholders=self._pools.placeholders())

        def decided(*, fresh: bool = False, refused: str = "") -> Decision:
            seen = self._with_taken(path, self._children(namespace, name, gang=cluster.kai))
            there = self._pools.read(pool, namespace, self._now(), fresh=fresh) if pool else None
            told = self._progress(path, item, seen)
            more: dict[str, Any] = {
                "pool": there,
                "refused": refused,
                "nearby": self._nearby(item, seen),
            }
            try:
                return jobs.decide(item, queue, seen, cluster, self._now(), told, **more)
            except Exception:
                # The job's deadline and suspension must take effect even if the data of its pods can't be read.
                log.exception("%s: reconciled without the data of its pods", path)
                trusted = [
                    observe.trusted_fields(each) if each.get("kind") == "Pod" else each for each in seen
                ]
                return jobs.decide(item, queue, trusted, cluster, self._now(), **more)

        def counted() -> Decision:
            decision = decided()
            return decided(fresh=True) if decision.recount else decision

        decision = counted()
        if _may_be_outdated(item, decision, cluster):
            # Not by what was known of the cluster before somebody made the class or the queue that it needs.
            anew = self._facts.cluster(namespace, claims=claims, fresh=True)
            cluster = replace(anew, placeholders=cluster.placeholders)
            decision = counted()
        try:
            again = self._do(path, item, decision)
        except ApiError as error:
            if not pool or error.status not in _JUDGED or not _is_of_a_pod(error):
                raise
            again = self._do(path, item, decided(refused=error.message))
        return self._pace.paced(path, again, waits=bool(pool))

    def queue(self, namespace: str, name: str) -> float | None:
        """As `job`, for a queue."""
        path = f"{collection(n.API_VERSION, n.QUEUE_KIND, namespace)}/{quote(name)}"
        item = self._objects.get(path)
        if item is None:
            self._taken.pop(path, None)
            return None
        with self._telling(item):
            return self._see_queue(path, item)

    def _see_queue(self, path: str, item: JsonObject) -> float | None:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        cluster = self._facts.cluster(namespace, claims=False)
        theirs: list[JsonObject] = []
        if cluster.kai:
            labels = {n.LABEL_QUEUE_NAMESPACE: namespace, n.LABEL_QUEUE_NAME: name}
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            theirs = self._with_taken(path, self._objects.list(*_KAI_QUEUE, "", selector))
            if queues.lacks_parent(item, theirs, cluster):
                cluster = self._facts.cluster(namespace, claims=False, fresh=True)
        decision = queues.decide(
            item,
            theirs,
            self._tried(item, cluster),
            self._phases(namespace, name),
            cluster,
            self._now(),
            self._in_kai() if queues.removable(item, theirs) else (),
            self._read_pool(item),
        )
        return self._do(path, item, decision)

    def _read_pool(self, queue: JsonObject) -> Observation | None:
        """Read the queue's Karpenter pool; None for a queue without one."""
        pool = queues.pool_name(queue)
        return self._pools.read(pool, queue["metadata"]["namespace"], self._now()) if pool else None

    def _in_kai(self) -> list[JsonObject]:
        """Everybody's gangs and queues: an administrator may have put some into one of ours."""
        return [each for kind in (_GANG, _KAI_QUEUE) for each in self._objects.list(*kind, "")]

    def close(self) -> None:
        """Nothing is looked at any more."""
        self._asking.close()

    def _nearby(self, item: JsonObject, seen: list[JsonObject]) -> tuple[str, ...]:
        """Return the addresses from which a new sync pod may get the workspace."""
        namespace, name = item["metadata"]["namespace"], n.sync_pod(item["metadata"]["name"])
        there = any((each["kind"], each["metadata"]["name"]) == ("Pod", name) for each in seen)
        if there or not lost_workspace.needs_sync_pod(item):
            return ()
        return lost_workspace.nearby_sync_pods(item, self._objects.list(n.API_VERSION, n.JOB_KIND, namespace))

    def _progress(self, path: str, item: JsonObject, seen: list[JsonObject]) -> JsonObject | None:
        """Return the progress from the first worker. An error does not stop the reconcile."""
        try:
            worker = progress.first_worker(item, seen)
            return None if worker is None else self._asking.told(path, worker)
        except Exception as error:
            log.warning("%s: its progress can't be read: %r", path, error)
            return None

    def _do(self, path: str, item: JsonObject, decision: Decision) -> float | None:
        # What was made for it goes when it is gone; what was missing for that reason is not to be made anew. It was
        # read before all that it has, so that no status is written over one that knows more.
        if decision.makes and not self._is_there(path, item):
            return None
        blocked = carry_out(decision, item, self._objects, now=self._now)
        if not blocked:
            return decision.again
        if blocked != path:
            self._taken[path].add(blocked)
        return SOON_SECONDS

    def _is_there(self, path: str, item: JsonObject) -> bool:
        found = self._objects.get(path)
        return found is not None and bool(found["metadata"].get("uid") == item["metadata"].get("uid"))

    @contextmanager
    def _telling(self, item: JsonObject) -> Iterator[None]:
        """People look at the object, not at the controller: what the API server refuses is written there.

        That is a quota, a webhook, or a right that the controller has not.
        """
        try:
            yield
        except ApiError as error:
            if error.status in _JUDGED:
                decision = refused.decide(item, str(error), self._now())
                carry_out(decision, item, self._objects, now=self._now)
            raise

    def _with_taken(self, path: str, seen: list[JsonObject]) -> list[JsonObject]:
        """And what has been in the way before, as far as it is there still."""
        there = {path_of(each) for each in seen}
        for other in self._taken[path] - there:
            found = self._objects.get(other)
            if found is None:
                self._taken[path].discard(other)
            else:
                seen.append(found)
        return seen

    def _tried(self, item: JsonObject, cluster: Cluster) -> Trial | None:
        """What the API server says of a pod of the queue, without making it."""
        pod = queues.trial(item, cluster)
        if pod is None:
            return None
        try:
            self._objects.create(pod, dry_run=True)
        except ApiError as error:
            if error.status not in _JUDGED:
                raise
            return Trial(refusal=error.message)
        return Trial()

    def _phases(self, namespace: str, name: str) -> list[str]:
        items = self._objects.list(n.API_VERSION, n.JOB_KIND, namespace)
        return [
            str((each.get("status") or {}).get("phase") or "")
            for each in items
            if (each.get("spec") or {}).get("jobQueue") == name
        ]

    def _queue(self, namespace: str, spec: Any) -> JsonObject | None:
        name = spec.get("jobQueue") if isinstance(spec, dict) else None
        if not isinstance(name, str) or not name:
            return None
        return self._objects.get(
            f"{collection(n.API_VERSION, n.QUEUE_KIND, namespace)}/{quote(name, safe='')}"
        )

    def _children(self, namespace: str, name: str, *, gang: bool) -> list[JsonObject]:
        def listed(version: str, kind: str) -> list[JsonObject]:
            return self._objects.list(version, kind, namespace, f"{n.LABEL_JOB}={name}")

        jobs, pods = listed(*_JOB), listed(*_POD)
        if any(map(observe.is_ending, pods)):
            # A Job that has succeeded with some of its workers removes the others. Who read it before that, and them
            # after, would take them for lost.
            jobs = listed(*_JOB)
        others = [each for kind in (*_OTHERS, *((_GANG,) if gang else ())) for each in listed(*kind)]
        return [*jobs, *pods, *others]


def _is_of_a_pod(error: ApiError) -> bool:
    return error.method == "POST" and error.path.endswith("/pods")


def _may_be_outdated(item: JsonObject, decision: Decision, cluster: Cluster) -> bool:
    """Whether it waits, fails now, or is made otherwise for what somebody may have made since `cluster` was read."""
    if any(storage.of_unknown_class(each, cluster) for each in decision.makes):
        return True
    told = decision.status or item.get("status") or {}
    over = decision.status is None and told.get("phase") in n.FINAL_PHASES
    return not over and told.get("reason") in _BY_FACTS


def _names_claims(item: JsonObject, queue: JsonObject | None) -> bool:
    """Whether a claim is used as it is: only then the claims of the namespace matter."""
    return "existingClaim" in json.dumps([item.get("spec"), queue and queue.get("spec")])
