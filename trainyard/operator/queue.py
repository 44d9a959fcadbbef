"""Decides for a TorchrunQueue: KAI's queue of it, its finalizer where it has one, and what is told of it. Pure."""

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
from trainyard.operator.distribution import Size, distribute
from trainyard.operator.gang import (
    build_kai_queue,
    find_missing_queue,
    kai_status,
    list_queue_children,
    read_kai_queue,
)
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
from trainyard.operator.pool import pool_status
from trainyard.operator.status import STARTED_PHASES, Condition, conditions_by_type, merge_conditions
from trainyard.operator.storage import Mount, Storage

# A dry run makes nothing, and its name is never seen.
_TRIAL: Final = "template-trial"
_MAX_SHOWN: Final = 3
_CREATING: Final = "Creating"
_DELETING: Final = "Deleting"
# Said after all else was found right, what a quota wants every pod to say among it (kubernetes 1.35.4,
# k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go: CheckRequest).
_QUOTA_EXCEEDED: Final = " is forbidden: exceeded quota: "
_TRIAL_UID: Final = "00000000-0000-0000-0000-000000000000"
_TRIAL_WORKSPACE: Final = {"digest": f"sha256:{'0' * 64}", "sizeBytes": 1}


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What the API server said of a pod of the queue in a dry run: nothing, where it takes it."""

    refusal: str = ""


def build_trial_pod(queue: JsonObject, cluster: Cluster) -> JsonObject | None:
    """The pod that is to be tried by a dry run: a worker of a job on one node, with a workspace.

    None where the spec itself is wrong.
    """
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
    """The pod that the Job controller would make of this template.

    What the queue's own template has comes first in lists: an index in the API server's answer is the field's own.
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
    """Whether it has queues of KAI that are not to stay, if nothing is in them."""
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
    """What is to be done for this queue.

    `kai_queues` are those of KAI that carry its labels or its kaiQueue's name, `tried` what became of `trial`, None
    while the API server did not say, and `phases` those of the jobs that name it, empty for one that has none yet.
    `in_kai` are all PodGroups and Queues of KAI if something is `removable`. `pool` is the observation of
    the Karpenter pool that it names, None where it was not read.
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
    # What can't be read says nothing: a queue that may be used is not removed for it.
    # The gangs in one could neither go on after a restart nor be told from those without a queue; queues below one
    # would hang in the air.
    left = [each for each in ours if each not in kept] if spec is not None else []
    above = wanted["spec"]["parentQueue"] if wanted is not None else None
    deletions = _remove([each for each in left if each not in used and each["metadata"]["name"] != above])
    done = _kai(meta, wanted, there, kept)
    if spec is not None and wanted is None and not ours:
        done = ReconcilePlan(finalizers=_finalizers(meta, held=False))
    conditions = _queue_conditions(meta, spec, problems, tried, there, cluster, pool)
    decision = _write(
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
    return replace(decision, requeue_after=POLL_SECONDS) if any(each in used for each in left) else decision


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
    """What to make and change; the finalizer is there before the Queue is, which nobody else would remove."""
    if wanted is None:
        return ReconcilePlan()
    present = [each for each in there if each["metadata"]["name"] == wanted["metadata"]["name"]]
    if present and not kept:
        return ReconcilePlan()  # an administrator's, or another TorchrunQueue's: it is used as it is
    if n.QUEUE_FINALIZER not in meta.finalizers:
        return ReconcilePlan(finalizers=_finalizers(meta, held=True))
    if not present:
        return ReconcilePlan(creations=(wanted,))
    # Quotas are an administrator's to change; its place in the tree is ours.
    parent = {key: wanted[key] for key in ("apiVersion", "kind")} | {
        "metadata": {**wanted["metadata"], "uid": kept[0]["metadata"]["uid"]},
        "spec": {"parentQueue": wanted["spec"]["parentQueue"]},
    }
    return ReconcilePlan(patches=() if contains(kept[0], parent) else (parent,))


def _release(
    queue: JsonObject, meta: Meta, ours: list[JsonObject], inside: Mapping[str, list[str]], now: float
) -> ReconcilePlan:
    """A queue that is being deleted takes KAI's with it, and goes when that is gone: after all that is in it."""
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
        decision = _write(queue, meta, conditions, None, now, ReconcilePlan())
        return replace(decision, requeue_after=POLL_SECONDS)
    if ours:
        # One of its own that is above another goes after it.
        lowest = [each for each in ours if not inside[each["metadata"]["name"]]]
        return ReconcilePlan(deletions=_remove(lowest or ours), requeue_after=POLL_SECONDS)
    return ReconcilePlan(finalizers=_finalizers(meta, held=False))


def _deletion_message(name: str, left: list[str]) -> str:
    more = f" and {len(left) - _MAX_SHOWN} more" if len(left) > _MAX_SHOWN else ""
    return f"is deleted when nothing is left in KAI's queue {name}: {', '.join(left[:_MAX_SHOWN])}{more}"


def _finalizers(meta: Meta, *, held: bool) -> tuple[str, ...] | None:
    """The others', and ours or not; None where it is so. Ours goes whoever put it there: a restored queue has it."""
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
        # The queue's own jobs may use it, and each of them tells of a pod that it does not get.
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
    """Whether a queue above its queue of KAI is not among those that are known: it may have been made since."""
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
    """Return the reconcile plan, with the conditions `told` and the fields `kept` in the status."""
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
        # Of kinds that have just come nothing may be heard yet.
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
