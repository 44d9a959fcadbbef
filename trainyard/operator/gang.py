"""Find gangs that KAI Scheduler would never start: their queue is missing, or its limits are too low. Pure.

KAI itself decides whether there is room at present. The controller keeps the limits in the queue's status
(`kai_status`), so that `kubectl torchrun submit` refuses a job before it is created (`rejection_reason`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from trainyard.k8s import quantity
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.queue import QueueSpec
from trainyard.operator.children import build_object, spec_digest
from trainyard.operator.context import AttemptSpec, ReconcileContext, Wait, valid_conditions
from trainyard.operator.nodes import Unreadable, worker_requests
from trainyard.operator.observe import Cluster, KaiQueue
from trainyard.operator.plan import POLL_SECONDS


def build_pod_group(attempt: AttemptSpec) -> JsonObject:
    """Return KAI's gang: all workers of the attempt start together, of an elastic one its minimum."""
    queue = attempt.settings.queue
    name = n.attempt_name(attempt.name, attempt.number)
    spec: JsonObject = {
        "minMember": attempt.size.least,
        "queue": queue.kai_queue or n.KAI_DEFAULT_QUEUE,
        # KAI 0.16.2 to 0.17.0 count a succeeded worker as missing and evict the others after 60 s
        # (kai-scheduler/KAI-Scheduler#1968). The controller handles lost workers itself. Older definitions drop the
        # field.
        "stalenessGracePeriod": n.KAI_NEVER_STALE,
    }
    if queue.scheduling.priority_class_name:
        spec["priorityClassName"] = queue.scheduling.priority_class_name
    version = f"{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
    made = build_object(attempt, version, "PodGroup", name, attempt.attempt_labels)
    made["metadata"]["annotations"] = {n.ANNOTATION_MADE_OF: spec_digest(spec)}
    return {**made, "spec": spec}


def build_kai_queue(name: str, parent: str, namespace: str, owner: str) -> JsonObject:
    """Return KAI's Queue of a TorchrunQueue, without limits. It is cluster-scoped, so labels name its owner.

    A missing value is 0: no quota, and nothing above it. -1 is no limit.
    """
    unlimited = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    return {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {
            "name": name,
            "labels": {
                n.LABEL_QUEUE_NAMESPACE: namespace,
                n.LABEL_QUEUE_NAME: owner,
                n.LABEL_MANAGED_BY: n.MANAGED_BY,
            },
        },
        "spec": {
            "parentQueue": parent,
            "resources": {kind: dict(unlimited) for kind in ("cpu", "gpu", "memory")},
        },
    }


NAME: Final = "name"
LIMITS: Final = "limits"


def gang_wait(ctx: ReconcileContext, attempt: AttemptSpec) -> Wait | None:
    """Return the wait of a job that KAI would never start. Its pods would stay pending without a reason."""
    if not attempt.settings.gang:
        return None
    reason, message = _missing_queue(ctx, attempt)
    if not reason:
        reason, message = _exceeded_limit(ctx, attempt)
    if not reason:
        return None
    return Wait(
        reason=reason,
        message=message,
        conditions=valid_conditions(attempt.settings),
        requeue_after=POLL_SECONDS,
    )


def _missing_queue(ctx: ReconcileContext, attempt: AttemptSpec) -> tuple[str, str]:
    name = attempt.settings.queue.kai_queue
    lacking = find_missing_queue(ctx.cluster.kai_queues, name) if name else ""
    if not lacking:
        return "", ""
    above = f", which is above {name}" if lacking != name else ""
    message = f"KAI Scheduler has no queue {lacking}{above}; the job begins when it is there"
    return n.REASON_KAI_QUEUE_NOT_FOUND, message


def _exceeded_limit(ctx: ReconcileContext, attempt: AttemptSpec) -> tuple[str, str]:
    why = _excess(attempt, lowest_limits(ctx.cluster.kai_queues, kai_queue_name(attempt.settings.queue)))
    return (
        (n.REASON_KAI_QUEUE_LIMIT, f"{why}; the job begins when it may have more, or the job asks for less")
        if why
        else ("", "")
    )


def kai_queue_name(queue: QueueSpec) -> str:
    """Return the name of KAI's queue for the gangs of a TorchrunQueue."""
    return queue.kai_queue or n.KAI_DEFAULT_QUEUE


def kai_status(queue: QueueSpec, cluster: Cluster) -> JsonObject | None:
    """Return `kai` of the queue's status; None if KAI does not schedule its jobs."""
    if queue.scheduling.scheduler != n.KAI_SCHEDULER or not cluster.kai:
        return None
    found = lowest_limits(cluster.kai_queues, kai_queue_name(queue))
    limits = {resource: {"queue": each.queue, "limit": each.most} for resource, each in found.items()}
    return {NAME: kai_queue_name(queue), LIMITS: limits}


def gang_rejection_reason(status: Any, attempt: AttemptSpec) -> str:
    """Return why KAI would never start `making` in a queue with this status; "" if it may."""
    fields = status.get("kai") if isinstance(status, Mapping) else None
    if not attempt.settings.gang or not isinstance(fields, Mapping):
        return ""
    limits = fields.get(LIMITS)
    if fields.get(NAME) != kai_queue_name(attempt.settings.queue) or not isinstance(limits, Mapping):
        return ""
    found = {
        resource: KaiLimit(queue=str(each.get("queue")), most=most)
        for resource, each in limits.items()
        if isinstance(each, Mapping) and isinstance(most := each.get("limit"), int | float)
    }
    why = _excess(attempt, found)
    return f"{why}; request less, or a higher limit" if why else ""


def _excess(attempt: AttemptSpec, limits: Mapping[str, KaiLimit]) -> str:
    """Return the limit that the job exceeds. For an elastic job, its minimum counts."""
    asked = _gang_requests(attempt) if limits else {}
    for resource, limit in limits.items():
        need = asked.get(resource, 0)
        if need > limit.most:
            what = "at least " if attempt.size.elastic else ""
            return (
                f"the job asks for {what}{_format_resource(resource, need)}, and KAI Scheduler's queue {limit.queue} "
                f"may have {_format_resource(resource, limit.most)} (spec.resources.{resource}.limit)"
            )
    return ""


def _format_resource(resource: str, amount: float) -> str:
    if resource == "memory":
        return f"{quantity.in_words(int(amount))} of memory"
    return f"{amount:g} {'GPUs' if resource == KAI_GPU else 'processors'}"


def _gang_requests(attempt: AttemptSpec) -> dict[str, float]:
    """Return the requests of all workers for the resources that KAI's queues limit."""
    each: Mapping[str, Any] = {}
    with suppress(Unreadable):  # the dry run of the queue's pod reports it
        each = worker_requests(attempt)
    workers = attempt.size.least
    return {
        KAI_GPU: workers * attempt.size.gpus,
        **{name: float(workers * each.get(name, 0)) for name in ("cpu", "memory")},
    }


KAI_GPU: Final = "gpu"
# Each resource of KAI's Queue, with its unit in GPUs, cores or bytes.
KAI_UNITS: Final[Mapping[str, Fraction | int]] = {KAI_GPU: 1, "cpu": Fraction(1, 1000), "memory": 10**6}


@dataclass(frozen=True, kw_only=True)
class KaiLimit:
    """The lowest limit of a resource and the queue that has it."""

    queue: str
    most: float


def read_kai_queue(item: JsonObject) -> KaiQueue:
    """Convert a Queue from the API server."""
    spec = item.get("spec") or {}
    resources = spec.get("resources")
    found = (
        {name: _read_limit(resources.get(name)) for name in KAI_UNITS} if isinstance(resources, dict) else {}
    )
    limits = {name: float(limit * KAI_UNITS[name]) for name, limit in found.items() if limit is not None}
    return KaiQueue(parent=str(spec.get("parentQueue") or ""), limits=limits)


def _read_limit(resource: Any) -> float | None:
    limit = resource.get("limit") if isinstance(resource, dict) else None
    said = isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0
    return limit if said else None


def find_missing_queue(queues: Mapping[str, KaiQueue], name: str) -> str:
    """Return the first missing queue, of this queue and those above it; "" if all exist."""
    return next((each for each in _queue_and_ancestors(queues, name) if each not in queues), "")


def lowest_limits(queues: Mapping[str, KaiQueue], name: str) -> dict[str, KaiLimit]:
    """Return the lowest limit of each resource, of this queue and those above it."""
    found: dict[str, KaiLimit] = {}
    for each in _queue_and_ancestors(queues, name):
        for resource, most in queues[each].limits.items() if each in queues else ():
            if resource not in found or most < found[resource].most:
                found[resource] = KaiLimit(queue=each, most=most)
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


def relax_gang(ctx: ReconcileContext) -> tuple[dict[str, Any], ...]:
    """Return a patch that sets the gang's minimum to one member after a worker has succeeded.

    KAI Scheduler 0.16.2 to 0.17.0 counts such a worker as missing, and evicts the others 60 s later
    (kai-scheduler/KAI-Scheduler#1968). `build_pod_group` prevents that in 0.17.0 by stalenessGracePeriod. The 0.16
    releases have no such field, and evict only a gang that is below its minimum (IsStale in
    pkg/scheduler/api/podgroup_info/job_info.go).
    """
    group = ctx.children.objects.get(("PodGroup", n.attempt_name(ctx.meta.name, ctx.status.attempt)))
    workers = ctx.children.workers_of(ctx.status.attempt)
    if group is None or all(each.phase != "Succeeded" for each in workers):
        return ()
    if (group.get("spec") or {}).get("minMember") in (None, 1) or "deletionTimestamp" in group["metadata"]:
        return ()
    meta = {key: group["metadata"][key] for key in ("name", "namespace", "uid")}
    kind = {key: group[key] for key in ("apiVersion", "kind")}
    return ({**kind, "metadata": meta, "spec": {"minMember": 1}},)
