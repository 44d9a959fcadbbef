"""Build PodGroups and Queues of KAI Scheduler, and find gangs that KAI would never start. Pure.

KAI starts all workers of a PodGroup together or none (`build_pod_group`), and decides whether they fit now.
A gang never starts if its queue is missing or its limits are too low. Then the job waits without pods (`gang_wait`).
The controller keeps the limits in the queue's status (`kai_status`), so that `kubectl torchrun submit` refuses a job
before it is created (`gang_rejection_reason`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any, Final

from trainyard.k8s import quantity
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.queue import QueueSpec
from trainyard.operator.children import build_object, spec_digest
from trainyard.operator.context import AttemptSpec, PendingReason, ReconcileContext, valid_conditions
from trainyard.operator.nodes import worker_requests
from trainyard.operator.observe import ClusterState, KaiQueue
from trainyard.operator.plan import POLL_SECONDS

_GPU: Final = "gpu"
# Each resource of KAI's Queue, with its unit in GPUs, cores or bytes.
_UNITS: Final[Mapping[str, Fraction | int]] = {_GPU: 1, "cpu": Fraction(1, 1000), "memory": 10**6}


def build_pod_group(attempt: AttemptSpec) -> JsonObject:
    """Return KAI's PodGroup: all workers of the attempt start together, or the minimum of an elastic attempt."""
    queue = attempt.settings.queue
    spec: JsonObject = {
        "minMember": attempt.size.minimum,
        "queue": kai_queue_name(queue),
        # KAI 0.16.2 to 0.17.0 count a succeeded worker as missing and evict the others after 60 s
        # (kai-scheduler/KAI-Scheduler#1968). The controller handles lost workers itself. Older definitions drop the
        # field.
        "stalenessGracePeriod": n.KAI_NEVER_STALE,
    }
    if queue.scheduling.priority_class_name:
        spec["priorityClassName"] = queue.scheduling.priority_class_name
    version, name = f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}", n.attempt_name(attempt.name, attempt.number)
    made = build_object(attempt, version, "PodGroup", name, attempt.attempt_labels)
    made["metadata"]["annotations"] = {n.ANNOTATION_MADE_OF: spec_digest(spec)}
    return {**made, "spec": spec}


def relax_gang(ctx: ReconcileContext) -> tuple[dict[str, Any], ...]:
    """Return a patch that sets the gang's minimum to one member after a worker has succeeded.

    KAI Scheduler 0.16.2 to 0.17.0 counts such a worker as missing, and evicts the others 60 s later
    (kai-scheduler/KAI-Scheduler#1968). `build_pod_group` prevents that in 0.17.0 by stalenessGracePeriod. The 0.16
    releases have no such field, and evict only a gang that is below its minimum (IsStale in
    pkg/scheduler/api/podgroup_info/job_info.go).
    """
    group = ctx.children.objects.get(("PodGroup", n.attempt_name(ctx.meta.name, ctx.status.attempt)))
    if group is None or all(each.phase != "Succeeded" for each in ctx.workers):
        return ()
    if (group.get("spec") or {}).get("minMember") in (None, 1) or "deletionTimestamp" in group["metadata"]:
        return ()
    meta = {key: group["metadata"][key] for key in ("name", "namespace", "uid")}
    kind = {key: group[key] for key in ("apiVersion", "kind")}
    return ({**kind, "metadata": meta, "spec": {"minMember": 1}},)


def build_kai_queue(name: str, parent: str, namespace: str, owner: str) -> JsonObject:
    """Return KAI's Queue of a TorchrunQueue, without limits. It is cluster-scoped, so labels name its owner.

    A missing value means 0: no quota, and no resources above it. -1 means no limit.
    """
    labels = {n.LABEL_QUEUE_NAMESPACE: namespace, n.LABEL_QUEUE_NAME: owner, n.LABEL_MANAGED_BY: n.MANAGED_BY}
    unlimited = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    resources = {kind: dict(unlimited) for kind in ("cpu", "gpu", "memory")}
    return {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {"name": name, "labels": labels},
        "spec": {"parentQueue": parent, "resources": resources},
    }


def kai_queue_name(queue: QueueSpec) -> str:
    """Return the name of KAI's queue for the gangs of a TorchrunQueue."""
    return queue.kai_queue or n.KAI_DEFAULT_QUEUE


def gang_wait(ctx: ReconcileContext, attempt: AttemptSpec) -> PendingReason | None:
    """Return why KAI would never start the job; None if it may. Its pods would stay pending without a reason."""
    if not attempt.settings.gang:
        return None
    queue, queues = attempt.settings.queue, ctx.cluster.kai_queues
    missing = find_missing_queue(queues, queue.kai_queue) if queue.kai_queue else ""
    excess = _find_excess(attempt, lowest_limits(queues, kai_queue_name(queue)))
    if missing:
        above = f"; it is above queue {queue.kai_queue}" if missing != queue.kai_queue else ""
        reason = n.REASON_KAI_QUEUE_NOT_FOUND
        message = f"queue {missing} of KAI Scheduler does not exist{above}. Create it, and the job starts"
    elif excess:
        reason, message = n.REASON_KAI_QUEUE_LIMIT, excess
    else:
        return None
    conditions = valid_conditions(attempt.settings)
    return PendingReason(reason=reason, message=message, conditions=conditions, requeue_after=POLL_SECONDS)


def kai_status(queue: QueueSpec, cluster: ClusterState) -> JsonObject | None:
    """Return `kai` of the queue's status; None if KAI does not schedule its jobs."""
    if queue.scheduling.scheduler != n.KAI_SCHEDULER or not cluster.kai:
        return None
    name = kai_queue_name(queue)
    return {"name": name, "limits": lowest_limits(cluster.kai_queues, name)}


def gang_rejection_reason(status: Any, attempt: AttemptSpec) -> str:
    """Return why KAI would never start the attempt in a queue with this status; "" if it may."""
    fields = (status or {}).get("kai") or {}
    if not attempt.settings.gang or fields.get("name") != kai_queue_name(attempt.settings.queue):
        return ""
    return _find_excess(attempt, fields.get("limits") or {})


def _find_excess(attempt: AttemptSpec, limits: Mapping[str, JsonObject]) -> str:
    """Return the limit that the requests of all workers exceed; "" for none. An elastic job counts its minimum."""
    requests: Mapping[str, Any] = {}
    with suppress(ValueError):  # the dry run of the queue's pod reports it
        requests = worker_requests(attempt) if limits else {}
    for resource, limit in limits.items():
        amount = attempt.size.gpus if resource == _GPU else requests.get(resource, 0)
        need = float(attempt.size.minimum * amount)
        if need > limit["limit"]:
            minimum = "at least " if attempt.size.elastic else ""
            return (
                f"the job requests {minimum}{_format_resource(resource, need)}, but the limit of KAI Scheduler's queue "
                f"{limit['queue']} is {_format_resource(resource, limit['limit'])} (spec.resources.{resource}.limit). "
                "Request less, or raise the limit"
            )
    return ""


def _format_resource(resource: str, amount: float) -> str:
    if resource == "memory":
        return f"{quantity.in_words(int(amount))} of memory"
    return f"{amount:g} {'GPUs' if resource == _GPU else 'CPUs'}"


def read_kai_queue(item: JsonObject) -> KaiQueue:
    """Convert a Queue from the API server. Its CustomResourceDefinition makes sure of the types."""
    spec = item.get("spec") or {}
    resources = spec.get("resources") or {}
    limits = {name: (resources.get(name) or {}).get("limit") for name in _UNITS}
    return KaiQueue(
        parent=spec.get("parentQueue") or "",
        limits={
            name: float(limit * _UNITS[name])
            for name, limit in limits.items()
            if limit is not None and limit >= 0
        },
    )


def find_missing_queue(queues: Mapping[str, KaiQueue], name: str) -> str:
    """Return the first missing queue, of this queue and those above it; "" if all exist."""
    return next((each for each in _queue_and_ancestors(queues, name) if each not in queues), "")


def lowest_limits(queues: Mapping[str, KaiQueue], name: str) -> dict[str, JsonObject]:
    """Return the lowest limit of each resource, of this queue and those above it, and the queue that has it."""
    found: dict[str, JsonObject] = {}
    for each in _queue_and_ancestors(queues, name):
        for resource, limit in queues[each].limits.items() if each in queues else ():
            if resource not in found or limit < found[resource]["limit"]:
                found[resource] = {"queue": each, "limit": limit}
    return found


def list_queue_children(name: str, items: Iterable[JsonObject]) -> list[str]:
    """Return the PodGroups and Queues that are directly in the queue with this name, by kind and name."""
    found = []
    for each in items:
        meta, spec = each["metadata"], each.get("spec") or {}
        above = spec.get("queue" if each["kind"] == "PodGroup" else "parentQueue")
        if above == name and (each["kind"], meta["name"]) != ("Queue", name):
            placed = f"{meta['namespace']}/" if meta.get("namespace") else ""
            found.append(f"{each['kind']} {placed}{meta['name']}")
    return sorted(found)


def _queue_and_ancestors(queues: Mapping[str, KaiQueue], name: str) -> Iterator[str]:
    """Yield this queue and those above it. KAI allows cycles, in which each queue is yielded once."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = queues[name].parent if name in queues else ""
