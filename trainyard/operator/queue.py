"""Reconcile a TorchrunQueue: its queue of KAI Scheduler, its finalizer, and its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from launcher.observe import Observation
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import JobSpec, Meta, parse_metadata, read_job
from trainyard.operator.api.permissions import JOB_LABELS, check_pod_template
from trainyard.operator.api.queue import QueueSpec, parse_queue
from trainyard.operator.api.resolve import Settings, combine
from trainyard.operator.children import build_worker
from trainyard.operator.context import AttemptSpec, Condition, conditions_by_type, earliest, merge_conditions
from trainyard.operator.gang import (
    build_kai_queue,
    find_missing_queue,
    kai_status,
    list_queue_children,
    read_kai_queue,
)
from trainyard.operator.nodes import pool_status
from trainyard.operator.observe import ClusterState
from trainyard.operator.plan import (
    NORMAL,
    POLL_SECONDS,
    POOL_SECONDS,
    WARNING,
    Event,
    ReconcilePlan,
    contains,
    deletions_of,
    list_first,
)
from trainyard.operator.resources import Mount, Size, StoragePlan, distribute

# The name of the pod in the dry run, which is never created.
_TRIAL: Final = "template-trial"
_TRIAL_UID: Final = "00000000-0000-0000-0000-000000000000"
_TRIAL_WORKSPACE: Final = {"digest": f"sha256:{'0' * 64}", "sizeBytes": 1}
_CREATING: Final = "Creating"
_DELETING: Final = "Deleting"
# The error after all other checks have passed, also those of a quota's required fields (kubernetes 1.35.4,
# k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go: CheckRequest).
_QUOTA_EXCEEDED: Final = " is forbidden: exceeded quota: "
# The status, the reason and the message of a condition.
_State = tuple[bool | None, str, str]


@dataclass(frozen=True, kw_only=True)
class QueueContext:
    """The input of a reconcile of a queue."""

    item: JsonObject  # the TorchrunQueue as it was read
    meta: Meta
    spec: QueueSpec | None  # its spec, None if it is invalid
    problems: tuple[str, ...]  # what is wrong with the spec
    kai_queues: Mapping[str, JsonObject]  # all queues of KAI, by name
    cluster: ClusterState
    now: float  # the time in seconds since the epoch
    # Why the API server rejects `build_trial_pod` in a dry run, "" if it does not; None without a dry run.
    refusal: str | None = None
    phases: Sequence[str] = ()  # the phases of its jobs, "" for a job without a status
    gangs: Sequence[JsonObject] = ()  # all PodGroups of KAI, if `unused_kai_queues` has an entry
    pool: Observation | None = None  # the state of its Karpenter pool, None if it was not read

    @cached_property
    def own_kai_queues(self) -> dict[str, JsonObject]:
        """Return the queues of KAI that the controller created for this queue, by name."""
        return {name: queue for name, queue in self.kai_queues.items() if _is_ours(queue, self.meta)}

    @property
    def unused_kai_queues(self) -> list[str]:
        """Return the queues of KAI that must be deleted when they are empty."""
        used = self.spec.kai_queue if self.spec is not None and not self.meta.deleting else None
        return [name for name in self.own_kai_queues if name != used]


def build_queue_context(
    queue: JsonObject, kai_queues: Iterable[JsonObject], cluster: ClusterState, now: float, **inputs: Any
) -> QueueContext:
    """Return the context of a reconcile, from objects as the API server returns them."""
    spec, problems = parse_queue(queue.get("spec"))
    return QueueContext(
        item=queue,
        meta=parse_metadata(queue),
        spec=spec,
        problems=problems if spec is None else tuple(check_pod_template(spec.pod_template)),
        kai_queues={queue["metadata"]["name"]: queue for queue in kai_queues} if cluster.kai else {},
        cluster=cluster,
        now=now,
        **inputs,
    )


def build_trial_pod(ctx: QueueContext) -> JsonObject | None:
    """Return the pod for the dry run: a worker on one node with a workspace. None for an invalid spec.

    It is the pod that the Job controller would create. Entries of the queue's own template come first in lists, so an
    index in the API server's answer is that of the field.
    """
    meta, spec = ctx.meta, ctx.spec
    if spec is None:
        return None
    gpus = spec.node_resources.gpus
    job_spec = {"numGPUs": gpus, "command": "true", "workspace": _TRIAL_WORKSPACE}
    job, _ = read_job({"jobQueue": meta.name, **job_spec})
    settings = combine(spec, job, gpus)
    size = distribute(job, settings.queue)
    pod = build_worker(trial_attempt(meta.namespace, job, settings, size, ctx.cluster), node=0)
    for key in ("initContainers", "volumes"):
        own = {entry.get("name") for entry in spec.pod_template.spec.get(key) or []}
        pod["spec"][key] = sorted(pod["spec"][key], key=lambda entry: entry["name"] not in own)
    values = (n.attempt_name(_TRIAL, 0), _TRIAL_UID)
    labels = {**dict(zip(JOB_LABELS, values * 2, strict=True)), **pod["metadata"]["labels"]}
    named = {**pod["metadata"], "labels": labels, "name": _TRIAL, "namespace": meta.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": pod["spec"]}


def trial_attempt(
    namespace: str, job: JobSpec, settings: Settings, size: Size, cluster: ClusterState
) -> AttemptSpec:
    """Return the AttemptSpec of a job that is only checked and never created."""
    volumes = settings.queue.volumes.values()
    mounts = tuple(Mount(volume=volume.name, path=volume.mount_path, claims=(_TRIAL,)) for volume in volumes)
    return AttemptSpec(
        name=_TRIAL,
        namespace=namespace,
        uid=_TRIAL_UID,
        spec=job,
        settings=settings,
        size=size,
        storage=StoragePlan(claims=(), mounts=mounts),
        cluster=cluster,
        number=0,
    )


def reconcile_queue(ctx: QueueContext) -> ReconcilePlan:
    """Return the plan for a queue."""
    meta, spec, cluster, ours = ctx.meta, ctx.spec, ctx.cluster, ctx.own_kai_queues
    in_kai = [*ctx.kai_queues.values(), *ctx.gangs]
    inside = {name: list_queue_children(name, in_kai) for name in ours}
    if meta.deleting:
        return _release(ctx, inside)
    states = {n.POD_TEMPLATE_VALID: _template_state("; ".join(ctx.problems), ctx.refusal)}
    if spec is None:  # an invalid spec deletes nothing
        plan, left, fields = ReconcilePlan(), [], {}
        states[n.KAI_QUEUE_READY] = (None, n.REASON_INVALID_SPEC, "spec is invalid: see PodTemplateValid")
    else:
        plan = _plan_kai_queue(ctx, spec) if cluster.kai else _without_finalizer(meta)
        # A queue in use is not deleted: its gangs could not restart, and queues below it would have no parent.
        left = ctx.unused_kai_queues
        unused = [ours[name] for name in left if not inside[name]]
        if spec.kai_queue:
            unused = [queue for queue in unused if queue["metadata"]["name"] != spec.parent_kai_queue]
        plan = replace(plan, deletions=tuple(deletions_of(unused)))
        states[n.KAI_QUEUE_READY] = _kai_state(ctx, spec)
        fields = {"kai": kai_status(spec, cluster)}
        if not spec.scheduling.pool:
            fields["pool"] = None
        elif ctx.pool is not None:
            fields["pool"] = pool_status(spec.scheduling.pool, ctx.pool.pool)
            states[n.POOL_READY] = _pool_state(spec.scheduling.pool, ctx.pool)
    states[n.READY] = next(
        (state for state in states.values() if state[0] is not True),
        (True, "Ready", "jobs of this queue can run"),
    )
    fields["jobs"] = {
        "active": sum(phase in n.STARTED_PHASES for phase in ctx.phases),
        "pending": sum(phase in ("", n.PHASE_PENDING, n.PHASE_RESTARTING) for phase in ctx.phases),
    }
    if any(inside[name] for name in left):
        plan = replace(plan, requeue_after=POLL_SECONDS)
    return _write(ctx, states, plan, fields)


def _is_ours(item: JsonObject, meta: Meta) -> bool:
    labels = item["metadata"].get("labels") or {}
    owner = [labels.get(key) for key in (n.LABEL_QUEUE_NAMESPACE, n.LABEL_QUEUE_NAME, n.LABEL_MANAGED_BY)]
    return owner == [meta.namespace, meta.name, n.MANAGED_BY]


def _plan_kai_queue(ctx: QueueContext, spec: QueueSpec) -> ReconcilePlan:
    """Return the writes for KAI's queue. Set the finalizer first, because nothing else deletes KAI's queue."""
    meta, ours = ctx.meta, ctx.own_kai_queues
    if not spec.kai_queue:
        return ReconcilePlan() if ours else _without_finalizer(meta)
    if spec.kai_queue in ctx.kai_queues and spec.kai_queue not in ours:
        return ReconcilePlan()  # it belongs to an administrator or another TorchrunQueue, and is only used
    if n.QUEUE_FINALIZER not in meta.finalizers:
        return ReconcilePlan(finalizers=(*meta.finalizers, n.QUEUE_FINALIZER))
    wanted = build_kai_queue(spec.kai_queue, spec.parent_kai_queue, meta.namespace, meta.name)
    if spec.kai_queue not in ours:
        return ReconcilePlan(creations=(wanted,))
    live = ours[spec.kai_queue]
    # Administrators may change its quotas, but not its parent.
    parent = {
        **wanted,
        "metadata": {**wanted["metadata"], "uid": live["metadata"]["uid"]},
        "spec": {"parentQueue": spec.parent_kai_queue},
    }
    return ReconcilePlan(patches=() if contains(live, parent) else (parent,))


def _without_finalizer(meta: Meta) -> ReconcilePlan:
    """Remove the finalizer, even if a user has set it."""
    others = tuple(finalizer for finalizer in meta.finalizers if finalizer != n.QUEUE_FINALIZER)
    return ReconcilePlan(finalizers=None if others == tuple(meta.finalizers) else others)


def _release(ctx: QueueContext, inside: Mapping[str, list[str]]) -> ReconcilePlan:
    """Delete KAI's queue of a deleted TorchrunQueue after everything in it, then remove the finalizer."""
    ours = ctx.own_kai_queues
    own = {f"Queue {name}" for name in ours}
    waits = []
    for name, children in inside.items():
        if left := [child for child in children if child not in own]:
            waits.append(f"queue {name} of KAI Scheduler is in use: {list_first(left)}")
    if waits:
        message = (
            f"TorchrunQueue {ctx.meta.name} waits for its deletion: {'; '.join(waits)}. Delete or move these"
        )
        return _write(ctx, {n.READY: (False, _DELETING, message)}, ReconcilePlan(), {})
    if ours:
        # Delete a queue after those below it.
        lowest = [queue for name, queue in ours.items() if not inside[name]]
        deletions = tuple(deletions_of(lowest or ours.values()))
        return ReconcilePlan(deletions=deletions, requeue_after=POLL_SECONDS)
    return _without_finalizer(ctx.meta)


def _template_state(problems: str, refusal: str | None) -> _State:
    if problems:
        return False, n.REASON_INVALID_SPEC, problems
    if refusal is None:
        return None, "NotChecked", "no dry run of a pod yet"
    if _QUOTA_EXCEEDED in refusal:
        # The queue's own jobs may use the quota, and each job reports its missing pods.
        return True, "Valid", "a dry run of a pod was accepted, except for a quota that is used up"
    if refusal:
        return False, n.REASON_REFUSED, refusal
    return True, "Valid", "a dry run of a pod was accepted"


def _kai_state(ctx: QueueContext, spec: QueueSpec) -> _State:
    name, is_scheduler = spec.kai_queue, spec.scheduling.scheduler == n.KAI_SCHEDULER
    present = ctx.kai_queues.get(name)
    if not ctx.cluster.kai and (name or is_scheduler):
        effect = "the jobs of this queue wait" if is_scheduler else "the jobs of this queue run without it"
        field = "scheduling.scheduler" if is_scheduler else "kaiQueue"
        message = f"spec.{field}: KAI Scheduler is not installed; {effect}. Install it, or remove the field"
        return False, n.REASON_SCHEDULER_NOT_INSTALLED, message
    if not name:
        return True, "NotRequested", "spec.kaiQueue is not set"
    if present is None:
        return False, _CREATING, f"queue {name} of KAI Scheduler is being created"
    if "deletionTimestamp" in present["metadata"]:
        return False, _DELETING, f"queue {name} of KAI Scheduler is being deleted"
    if missing := find_missing_queue(ctx.cluster.kai_queues, read_kai_queue(present).parent):
        message = (
            f"queue {name} of KAI Scheduler is below {missing}, which does not exist, so no gang in it starts. Create "
            f"{missing}, or set parentKaiQueue to another queue ({n.KAI_PARENT_QUEUE} comes with KAI Scheduler)"
        )
        return False, n.REASON_PARENT_QUEUE_NOT_FOUND, message
    return True, "Created" if name in ctx.own_kai_queues else "Found", f"queue {name} of KAI Scheduler exists"


def _pool_state(name: str, seen: Observation) -> _State:
    if seen.pool is None:
        message = f"spec.scheduling.pool: NodePool {name} does not exist. Create it, or name another NodePool"
        return False, n.REASON_POOL_NOT_FOUND, message
    if not seen.pool.ready:
        return False, n.REASON_POOL_NOT_READY, f"NodePool {name} is not ready: {seen.pool.problem}"
    return True, "Found", f"NodePool {name} exists"


def _write(
    ctx: QueueContext, states: Mapping[str, _State], plan: ReconcilePlan, fields: Mapping[str, Any]
) -> ReconcilePlan:
    """Return the plan with these conditions and fields in the status. None removes a field."""
    old: JsonObject = ctx.item.get("status") or {}
    generation = ctx.meta.generation
    conditions = [Condition(kind, *state) for kind, state in states.items()]
    status: JsonObject = {
        **old,
        "observedGeneration": generation,
        "conditions": merge_conditions(old.get("conditions"), conditions, generation, ctx.now),
        **fields,
    }
    status = {key: value for key, value in status.items() if value is not None}
    # No watch reports a missing scheduler or pool, or the end of a refusal. The watches of new kinds may be late.
    is_polled = any(is_true is not True for is_true, _, _ in states.values())
    after = earliest(
        plan.requeue_after,
        POLL_SECONDS if is_polled else None,
        POOL_SECONDS if any(fields.get(key) is not None for key in ("pool", "kai")) else None,
    )
    plan = replace(plan, requeue_after=after)
    if status == old:
        return plan
    ready, reason, message = states[n.READY]
    was, new = (conditions_by_type(seen.get("conditions")).get(n.READY, {}) for seen in (old, status))
    is_new = was.get("status") != new["status"]
    event = Event(type=NORMAL if ready else WARNING, reason=reason, message=message)
    return replace(plan, status=status, events=(event,) if is_new else ())
