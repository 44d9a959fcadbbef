"""Reconcile a TorchrunQueue: its queue of KAI Scheduler, its finalizer, and its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from types import MappingProxyType
from typing import Final

from launcher.observe import Observation
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import JobSpec, Meta, parse_job, parse_metadata
from trainyard.operator.api.permissions import JOB_LABELS, check_pod_template
from trainyard.operator.api.queue import QueueSpec, parse_queue
from trainyard.operator.api.resolve import Settings, resolve
from trainyard.operator.children import build_worker
from trainyard.operator.context import AttemptSpec
from trainyard.operator.gang import (
    build_kai_queue,
    find_missing_queue,
    kai_status,
    list_queue_children,
    read_kai_queue,
)
from trainyard.operator.nodes import pool_status
from trainyard.operator.observe import Cluster
from trainyard.operator.plan import (
    NORMAL,
    POLL_SECONDS,
    POOL_SECONDS,
    SCHEDULER_SECONDS,
    WARNING,
    Deletion,
    Event,
    ReconcilePlan,
    contains,
    deletion,
)
from trainyard.operator.resources import Mount, Size, Storage, distribute
from trainyard.operator.status import STARTED_PHASES, Condition, conditions_by_type, merge_conditions

# The name of the pod in the dry run, which is never created.
_TRIAL: Final = "template-trial"
_MAX_SHOWN: Final = 3
_CREATING: Final = "Creating"
_DELETING: Final = "Deleting"
# The error after all other checks have passed, also those of a quota's required fields (kubernetes 1.35.4,
# k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go: CheckRequest).
_QUOTA_EXCEEDED: Final = " is forbidden: exceeded quota: "
_TRIAL_UID: Final = "00000000-0000-0000-0000-000000000000"
_TRIAL_WORKSPACE: Final = {"digest": f"sha256:{'0' * 64}", "sizeBytes": 1}


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The API server's answer to a dry run of a pod of the queue; no refusal if it accepts the pod."""

    refusal: str = ""


def build_trial_pod(queue: JsonObject, cluster: Cluster) -> JsonObject | None:
    """Return the pod for the dry run: a worker on one node with a workspace. None for an invalid spec."""
    meta = parse_metadata(queue, [])
    spec, _ = parse_queue(queue.get("spec"))
    if spec is None:
        return None
    asked = {
        "jobQueue": meta.name,
        "numGPUs": spec.node_resources.gpus,
        "command": "true",
        "workspace": _TRIAL_WORKSPACE,
    }
    job, _ = parse_job(asked)
    settings = resolve(queue.get("spec"), job)[0] if job is not None else None
    if job is None or settings is None:
        return None
    size = distribute(job, settings.queue)
    template = build_worker(trial_attempt(meta.namespace, job, settings, size, cluster), node=0)
    return _pod_of(template, meta.namespace, spec)


def trial_attempt(
    namespace: str, job: JobSpec, settings: Settings, size: Size, cluster: Cluster
) -> AttemptSpec:
    """Return the Making of a job that is only checked and never created."""
    mounts = tuple(
        Mount(volume=each.name, path=each.mount_path, claims=(_TRIAL,))
        for each in settings.queue.volumes.values()
    )
    return AttemptSpec(
        name=_TRIAL,
        namespace=namespace,
        uid=_TRIAL_UID,
        spec=job,
        settings=settings,
        size=size,
        storage=Storage(claims=(), mounts=mounts),
        cluster=cluster,
        number=0,
    )


def pool_name(queue: JsonObject) -> str:
    """Return the name of the queue's Karpenter pool, "" for none."""
    spec, _ = parse_queue(queue.get("spec"))
    return spec.scheduling.pool if spec is not None else ""


def _pod_of(template: JsonObject, namespace: str, queue: QueueSpec) -> JsonObject:
    """Return the pod that the Job controller would create from this template.

    Entries of the queue's own template come first in lists, so an index in the API server's answer is that of the
    field.
    """
    values = (n.attempt_name(_TRIAL, 0), _TRIAL_UID)
    labels = {**dict(zip(JOB_LABELS, values * 2, strict=True)), **template["metadata"]["labels"]}
    spec = template["spec"]
    for key in ("initContainers", "volumes"):
        own = {each.get("name") for each in queue.pod_template.spec.get(key) or []}
        first = [each for each in spec[key] if each["name"] in own]
        spec = {**spec, key: [*first, *(each for each in spec[key] if each["name"] not in own)]}
    named = {**template["metadata"], "labels": labels, "name": _TRIAL, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}


def has_unused_kai_queues(queue: JsonObject, kai_queues: Iterable[JsonObject]) -> bool:
    """Return whether it has queues of KAI to delete when they are empty."""
    meta = parse_metadata(queue, [])
    spec, _ = parse_queue(queue.get("spec"))
    wanted = spec.kai_queue if spec is not None else None
    return any(
        _is_ours(each, meta) and (meta.deleting or each["metadata"]["name"] != wanted) for each in kai_queues
    )


def reconcile_queue(
    queue: JsonObject,
    kai_queues: Iterable[JsonObject],
    tried: DryRun | None,
    phases: Sequence[str],
    cluster: Cluster,
    now: float,
    in_kai: Iterable[JsonObject] = (),
    pool: Observation | None = None,
) -> ReconcilePlan:
    """Return the plan for a queue.

    Args:
        queue: The TorchrunQueue.
        kai_queues: The queues of KAI with its labels, or with the name of its kaiQueue.
        tried: The answer to the dry run, None if there is none.
        phases: The phases of its jobs, "" for a job without a status.
        cluster: What was read of the cluster.
        now: The time in seconds since the epoch.
        in_kai: All PodGroups and Queues of KAI, for `has_unused_kai_queues`.
        pool: The state of its Karpenter pool, None if it was not read.
    """
    problems: list[str] = []
    meta = parse_metadata(queue, problems)
    spec, wrong = parse_queue(queue.get("spec"))
    problems += wrong if spec is None else check_pod_template(spec)
    there = list(kai_queues) if cluster.kai else []
    ours = [each for each in there if _is_ours(each, meta)]
    others = list(in_kai)
    inside = {name: list_queue_children(name, others) for name in (each["metadata"]["name"] for each in ours)}
    used = [each for each in ours if inside[each["metadata"]["name"]]]
    if meta.deleting:
        return _release(queue, meta, ours, inside, now)
    wanted = None
    if spec is not None and spec.kai_queue and cluster.kai:
        wanted = build_kai_queue(spec.kai_queue, spec.parent_kai_queue, meta.namespace, meta.name)
    kept = [
        each for each in ours if wanted is not None and each["metadata"]["name"] == wanted["metadata"]["name"]
    ]
    # An invalid spec deletes nothing. A queue in use is not deleted: its gangs could not restart, and queues below it
    # would have no parent.
    left = [each for each in ours if each not in kept] if spec is not None else []
    above = wanted["spec"]["parentQueue"] if wanted is not None else None
    deletions = _remove([each for each in left if each not in used and each["metadata"]["name"] != above])
    done = _kai(meta, wanted, there, kept)
    if spec is not None and wanted is None and not ours:
        done = ReconcilePlan(finalizers=_finalizers(meta, held=False))
    conditions = _queue_conditions(meta, spec, problems, tried, there, cluster, pool)
    plan = _write(
        queue,
        meta,
        conditions,
        phases,
        now,
        replace(done, deletions=deletions),
        {
            **_pool_status(queue, spec, pool),
            **({} if spec is None else {"kai": kai_status(spec, cluster)}),
        },
    )
    return replace(plan, requeue_after=POLL_SECONDS) if any(each in used for each in left) else plan


def _is_ours(item: JsonObject, meta: Meta) -> bool:
    labels = item["metadata"].get("labels") or {}
    owner = (
        labels.get(n.LABEL_QUEUE_NAMESPACE),
        labels.get(n.LABEL_QUEUE_NAME),
        labels.get(n.LABEL_MANAGED_BY),
    )
    return owner == (meta.namespace, meta.name, n.MANAGED_BY)


def _remove(items: Sequence[JsonObject]) -> tuple[Deletion, ...]:
    return tuple(deletion(each) for each in items if "deletionTimestamp" not in each["metadata"])


def _kai(
    meta: Meta, wanted: JsonObject | None, there: list[JsonObject], kept: list[JsonObject]
) -> ReconcilePlan:
    """Return the writes for KAI's queue. The finalizer is set first, because nothing else would delete KAI's queue."""
    if wanted is None:
        return ReconcilePlan()
    present = [each for each in there if each["metadata"]["name"] == wanted["metadata"]["name"]]
    if present and not kept:
        return ReconcilePlan()  # it belongs to an administrator or another TorchrunQueue, and is only used
    if n.QUEUE_FINALIZER not in meta.finalizers:
        return ReconcilePlan(finalizers=_finalizers(meta, held=True))
    if not present:
        return ReconcilePlan(creations=(wanted,))
    # Administrators may change its quotas, but not its parent.
    parent = {key: wanted[key] for key in ("apiVersion", "kind")} | {
        "metadata": {**wanted["metadata"], "uid": kept[0]["metadata"]["uid"]},
        "spec": {"parentQueue": wanted["spec"]["parentQueue"]},
    }
    return ReconcilePlan(patches=() if contains(kept[0], parent) else (parent,))


def _release(
    queue: JsonObject, meta: Meta, ours: list[JsonObject], inside: Mapping[str, list[str]], now: float
) -> ReconcilePlan:
    """Delete KAI's queue of a deleted TorchrunQueue after everything in it, then remove the finalizer."""
    own = {f"Queue {name}" for name in inside}
    theirs = {
        name: left for name, each in inside.items() if (left := [one for one in each if one not in own])
    }
    if theirs:
        conditions = (
            Condition(
                type=n.READY,
                status=False,
                reason=_DELETING,
                message="; ".join(starmap(_deletion_message, theirs.items())),
            ),
        )
        plan = _write(queue, meta, conditions, None, now, ReconcilePlan())
        return replace(plan, requeue_after=POLL_SECONDS)
    if ours:
        # A queue goes after those below it.
        lowest = [each for each in ours if not inside[each["metadata"]["name"]]]
        return ReconcilePlan(deletions=_remove(lowest or ours), requeue_after=POLL_SECONDS)
    return ReconcilePlan(finalizers=_finalizers(meta, held=False))


def _deletion_message(name: str, left: list[str]) -> str:
    more = f" and {len(left) - _MAX_SHOWN} more" if len(left) > _MAX_SHOWN else ""
    return f"is deleted when nothing is left in KAI's queue {name}: {', '.join(left[:_MAX_SHOWN])}{more}"


def _finalizers(meta: Meta, *, held: bool) -> tuple[str, ...] | None:
    """Return the finalizers with or without ours, even if a user has set it; None for no change."""
    if (n.QUEUE_FINALIZER in meta.finalizers) is held:
        return None
    others = tuple(each for each in meta.finalizers if each != n.QUEUE_FINALIZER)
    return (*others, n.QUEUE_FINALIZER) if held else others


def _queue_conditions(
    meta: Meta,
    spec: QueueSpec | None,
    problems: list[str],
    tried: DryRun | None,
    there: list[JsonObject],
    cluster: Cluster,
    pool: Observation | None,
) -> tuple[Condition, ...]:
    parts = [_template(problems, tried), _kai_ready(meta, spec, there, cluster)]
    if spec is not None and spec.scheduling.pool and pool is not None:
        parts.append(_pool_ready(spec.scheduling.pool, pool))
    ready = Condition(type=n.READY, status=True, reason="Ready", message="jobs of this queue can run")
    for each in parts:
        if each.status is not True:
            ready = Condition(type=n.READY, status=each.status, reason=each.reason, message=each.message)
            break
    return (*parts, ready)


def _pool_ready(name: str, seen: Observation) -> Condition:
    if seen.pool is None:
        message = f"NodePool {name} does not exist; scheduling.pool must be a NodePool of this cluster"
        return Condition(type=n.POOL_READY, status=False, reason=n.REASON_POOL_NOT_FOUND, message=message)
    if not seen.pool.ready:
        message = f"NodePool {name} is not ready: {seen.pool.problem}"
        return Condition(type=n.POOL_READY, status=False, reason=n.REASON_POOL_NOT_READY, message=message)
    return Condition(type=n.POOL_READY, status=True, reason="Found", message=f"NodePool {name} exists")


def _pool_status(queue: JsonObject, spec: QueueSpec | None, seen: Observation | None) -> JsonObject:
    """Return `pool` of the status: None for a queue without a pool, no field if the pool was not read."""
    if spec is not None and not spec.scheduling.pool:
        return {"pool": None}
    if spec is None or seen is None:
        return {}
    return {"pool": pool_status(spec.scheduling.pool, seen, queue.get("status"))}


def _template(problems: list[str], tried: DryRun | None) -> Condition:
    if problems:
        return Condition(
            type=n.POD_TEMPLATE_VALID, status=False, reason=n.REASON_INVALID_SPEC, message="; ".join(problems)
        )
    if tried is None:
        return Condition(
            type=n.POD_TEMPLATE_VALID, status=None, reason="NotTried", message="not tried yet by a dry run"
        )
    if _QUOTA_EXCEEDED in tried.refusal:
        # The queue's own jobs may use the quota, and each job reports its missing pods.
        message = "a dry run of a pod was accepted, but for a quota that is used up"
        return Condition(type=n.POD_TEMPLATE_VALID, status=True, reason="Valid", message=message)
    if tried.refusal:
        return Condition(
            type=n.POD_TEMPLATE_VALID, status=False, reason=n.REASON_REFUSED, message=tried.refusal
        )
    return Condition(
        type=n.POD_TEMPLATE_VALID, status=True, reason="Valid", message="a dry run of a pod was accepted"
    )


def _kai_ready(meta: Meta, spec: QueueSpec | None, there: list[JsonObject], cluster: Cluster) -> Condition:
    if spec is None:
        return Condition(
            type=n.KAI_QUEUE_READY, status=None, reason=n.REASON_INVALID_SPEC, message="the spec is wrong"
        )
    if not cluster.kai and (spec.kai_queue or spec.scheduling.scheduler == n.KAI_SCHEDULER):
        scheduled = spec.scheduling.scheduler == n.KAI_SCHEDULER
        what = "its jobs wait for it" if scheduled else "its jobs are not scheduled by it, and run without"
        message = f"the API of KAI Scheduler is not installed; {what}"
        return Condition(
            type=n.KAI_QUEUE_READY, status=False, reason=n.REASON_SCHEDULER_NOT_INSTALLED, message=message
        )
    if not spec.kai_queue:
        return Condition(
            type=n.KAI_QUEUE_READY, status=True, reason="NotAsked", message="no kaiQueue is named"
        )
    present = next((each for each in there if each["metadata"]["name"] == spec.kai_queue), None)
    if present is None:
        return Condition(
            type=n.KAI_QUEUE_READY, status=False, reason=_CREATING, message=f"{spec.kai_queue} is made"
        )
    if "deletionTimestamp" in present["metadata"]:
        message = f"{spec.kai_queue} is being deleted"
        return Condition(type=n.KAI_QUEUE_READY, status=False, reason=_DELETING, message=message)
    lacking = _lacking_above(present, cluster)
    if lacking:
        message = (
            f"{spec.kai_queue} is below {lacking}, and KAI Scheduler has no queue of that name: gangs in it wait for "
            f"ever; make {lacking}, or name another parentKaiQueue ({n.KAI_PARENT_QUEUE} is KAI's own)"
        )
        return Condition(
            type=n.KAI_QUEUE_READY, status=False, reason=n.REASON_PARENT_QUEUE_NOT_FOUND, message=message
        )
    reason = "Made" if _is_ours(present, meta) else "Found"
    return Condition(
        type=n.KAI_QUEUE_READY, status=True, reason=reason, message=f"KAI's queue {spec.kai_queue} is there"
    )


def lacks_parent(queue: JsonObject, kai_queues: Iterable[JsonObject], cluster: Cluster) -> bool:
    """Return whether a queue above its queue of KAI is unknown. It may be new."""
    spec, _ = parse_queue(queue.get("spec"))
    named = spec.kai_queue if spec is not None else None
    return any(
        each["metadata"]["name"] == named and _lacking_above(each, cluster) != "" for each in kai_queues
    )


def _lacking_above(kai_queue: JsonObject, cluster: Cluster) -> str:
    return find_missing_queue(cluster.kai_queues, read_kai_queue(kai_queue).parent)


def _write(
    queue: JsonObject,
    meta: Meta,
    conditions: tuple[Condition, ...],
    phases: Sequence[str] | None,
    now: float,
    done: ReconcilePlan,
    kept: Mapping[str, JsonObject | None] = MappingProxyType({}),
) -> ReconcilePlan:
    """Return the plan with these conditions and fields in the status."""
    old = queue.get("status")
    old = old if isinstance(old, dict) else {}
    status: JsonObject = {
        **old,
        "observedGeneration": meta.generation,
        "conditions": merge_conditions(old.get("conditions"), conditions, meta.generation, now),
    }
    if phases is not None:
        active = sum(each in STARTED_PHASES for each in phases)
        waiting = sum(each in ("", n.PHASE_PENDING, n.PHASE_RESTARTING) for each in phases)
        status["jobs"] = {"active": active, "pending": waiting}
    status = {key: value for key, value in {**status, **kept}.items() if value is not None}
    before = conditions_by_type(old.get("conditions")).get(n.READY, {}).get("status")
    events = tuple(
        Event(type=NORMAL if each.status else WARNING, reason=each.reason, message=each.message)
        for each in conditions
        if each.type == n.READY and before != {True: "True", False: "False", None: "Unknown"}[each.status]
    )
    reasons = {each.reason for each in conditions if each.status is not True}
    waits = {
        n.REASON_SCHEDULER_NOT_INSTALLED: SCHEDULER_SECONDS,
        n.REASON_REFUSED: POLL_SECONDS,
        n.REASON_PARENT_QUEUE_NOT_FOUND: POLL_SECONDS,
        # The watches of new kinds may not have started yet.
        _CREATING: POLL_SECONDS,
        _DELETING: POLL_SECONDS,
        n.REASON_POOL_NOT_FOUND: POLL_SECONDS,
        n.REASON_POOL_NOT_READY: POLL_SECONDS,
    }
    due = [seconds for reason, seconds in waits.items() if reason in reasons]
    due += [POOL_SECONDS for each in ("pool", "kai") if kept.get(each) is not None]
    return replace(
        done,
        status=None if status == old else status,
        events=() if status == old else events,
        requeue_after=min(due, default=None),
    )
