"""Start an attempt: wait until it can start, delete leftovers, and create its objects. Pure.

`start_attempt` sets the reason of a Pending job. `prepare_attempt` finds reasons in the specs of the job and its queue,
`_next_step` in their objects. The status does not name the attempt yet, so no worker runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.queue import parse_queue
from trainyard.operator.api.resolve import own_template
from trainyard.operator.children import build_claim, build_jobs, build_service, build_sync_pod
from trainyard.operator.context import AttemptSpec, ReconcileContext, Wait, earliest, valid_conditions
from trainyard.operator.diagnostics import ended_sync_pod, is_abandoned, workspace_wait
from trainyard.operator.gang import build_pod_group, gang_wait
from trainyard.operator.launcher_detection import detect_launcher, find_conflict
from trainyard.operator.nodes import (
    NodesChosen,
    NodesPending,
    choose_nodes,
    delete_placeholders,
    pending_without_nodes,
)
from trainyard.operator.observe import AttemptJob, Worker
from trainyard.operator.plan import (
    POLL_SECONDS,
    SCHEDULER_SECONDS,
    Deletion,
    ReconcilePlan,
    contains,
    deletion,
    deletions_of,
)
from trainyard.operator.resources import InvalidJob, VolumeMissing, distribute, plan_storage
from trainyard.operator.status import Condition

BACKOFF_FIRST_SECONDS: Final = 10.0
BACKOFF_MAX_SECONDS: Final = 360.0
_SHOWN: Final = 3
_NOT_SENT: Final = (
    f"the workspace did not arrive within {n.SYNC_ABANDONED_SECONDS} s; kubectl torchrun submit may have been stopped. "
    "Submit the job again"
)
_NOT_RUNNING: Final = (
    Condition(n.SUSPENDED, False, "NotAsked"),
    Condition(n.WORKERS_READY, False, n.REASON_STARTING),
)


def start_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """Return the next step towards the attempt that the status names."""
    if is_abandoned(ctx):
        return ctx.end(n.PHASE_FAILED, n.REASON_WORKSPACE_NOT_SENT, _NOT_SENT, None)
    prepared = prepare_attempt(ctx, ctx.status.attempt)
    if isinstance(prepared, AttemptSpec):
        prepared = gang_wait(ctx, prepared) or prepared
    choice: NodesChosen | NodesPending | None = None
    if isinstance(prepared, AttemptSpec):
        choice = unsent = _wait_for_workspace(ctx, prepared)
        if prepared.settings.queue.scheduling.pool:
            choice = choose_nodes(ctx, prepared, _count_leaving(ctx), unsent)
    if isinstance(choice, NodesChosen):
        prepared = prepare_attempt(ctx, ctx.status.attempt, choice.nodes)
    elif choice is not None and choice.recount:
        return ReconcilePlan(recount=True)
    wanted = build_jobs(prepared) if isinstance(prepared, AttemptSpec) else []
    current = [each for each in ctx.children.of(ctx.status.attempt) if _is_up_to_date(each, wanted)]
    outdated = [each for each in ctx.children.jobs if each not in current]
    kept = keep_failed_jobs(ctx, outdated)
    groups = _unfit_groups(ctx, prepared)
    plan = _next_step(ctx, prepared, outdated, groups, choice)
    gone = delete_jobs(each for each in outdated if each not in kept)
    unfit = [deletion(each, as_read=True) for each in groups]
    deletions = (*gone, *_old_groups(ctx), *unfit, *ended_sync_pod(ctx)[0])
    if choice is None:  # no placeholders are needed
        return replace(plan, deletions=(*deletions, *delete_placeholders(ctx)))
    if isinstance(choice, NodesChosen):
        return replace(plan, deletions=deletions)
    return replace(
        plan,
        deletions=(*deletions, *choice.deletions),
        creations=(*plan.creations, *choice.creations),
        requeue_after=earliest(choice.requeue_after, plan.requeue_after),
    )


def prepare_attempt(ctx: ReconcileContext, attempt: int, nodes: int | None = None) -> AttemptSpec | Wait:
    """Return the spec of an attempt, or why it can't be created.

    Args:
        ctx: The context.
        attempt: The number of the attempt.
        nodes: The number of nodes of an elastic job.
    """
    spec, meta, settings = ctx.spec, ctx.meta, ctx.settings
    if ctx.problems:
        return _refuse(ctx.problems)
    if not ctx.has_started and (unchecked := _policy_wait(ctx)):
        return unchecked
    leaves = ctx.queue is not None and "deletionTimestamp" in ctx.queue["metadata"]
    # A queue that is being deleted keeps its running jobs, but starts no others.
    if ctx.queue is None or (leaves and not _is_under_way(ctx)):
        lacks = "is being deleted" if leaves else f"is not in namespace {meta.namespace}"
        message = f"TorchrunQueue {spec.job_queue} {lacks}; {_queue_message(ctx)}"
        missing = Condition(n.QUEUE_FOUND, False, n.REASON_QUEUE_NOT_FOUND, message)
        return Wait(reason=n.REASON_QUEUE_NOT_FOUND, message=message, conditions=(missing,))
    if settings is None:
        _, own = parse_queue(ctx.queue.get("spec") or {})
        if not own:
            return _refuse("; ".join(ctx.resolved[1]))
        message = f"TorchrunQueue {spec.job_queue}: {'; '.join(own)}"
        found = Condition(n.QUEUE_FOUND, True, "Found")
        return Wait(reason=n.REASON_QUEUE_INVALID, message=message, conditions=(found,))
    # A job that started under an earlier version of the program continues.
    if not ctx.has_started and (own := own_template(ctx.queue.get("spec") or {}, spec, settings.queue)):
        return _refuse("; ".join(own))
    conditions = valid_conditions(settings)
    if settings.gang and not ctx.cluster.kai:
        reason = n.REASON_SCHEDULER_NOT_INSTALLED
        message = f"scheduling.scheduler is {n.KAI_SCHEDULER}, whose API is not installed; the job begins when it is"
        conditions = (*conditions[:-1], Condition(n.SCHEDULER_NOT_INSTALLED, True, reason, message))
        return Wait(reason=reason, message=message, conditions=conditions, requeue_after=SCHEDULER_SECONDS)
    try:
        size = distribute(spec, settings.queue)
        # A started job is not checked again unless its size changed.
        resized = any(each.size != spec.size_key for each in ctx.children.of(ctx.status.attempt))
        if resized or not ctx.has_started:
            # The controller can't read scripts in the workspace.
            launcher = detect_launcher(spec.command, spec.args, variables=spec.literal_variables)
            conflict = find_conflict(spec, launcher, size, settings.rendezvous)
            if any(conflict):
                return _refuse(": ".join(filter(None, conflict)))
        if nodes is not None and size.least <= nodes < size.nodes:
            size = replace(size, nodes=nodes)
        storage = plan_storage(meta.name, spec, settings, size, ctx.cluster, ctx.children.claims)
    except InvalidJob as error:
        return _refuse(str(error))
    except VolumeMissing as missing:
        return Wait(
            reason=missing.reason, message=str(missing), conditions=conditions, requeue_after=POLL_SECONDS
        )
    return AttemptSpec(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        spec=spec,
        settings=settings,
        size=size,
        storage=storage,
        cluster=ctx.cluster,
        number=attempt,
        has_started=ctx.has_started,
        nearby=ctx.nearby,
    )


def _refuse(message: str) -> Wait:
    """Return the wait with reason InvalidSpec and this message."""
    reason = n.REASON_INVALID_SPEC
    conditions = Condition(n.ACCEPTED, False, reason, message), Condition(n.QUEUE_FOUND, True, "Found")
    return Wait(reason=reason, message=message, conditions=conditions)


def _is_under_way(ctx: ReconcileContext) -> bool:
    return ctx.status.phase not in ("", n.PHASE_PENDING, n.PHASE_SUSPENDED)


def _queue_message(ctx: ReconcileContext) -> str:
    """Return the message about the effect of a missing queue on the job."""
    if ctx.status.running:
        return "the workers go on; what needs the queue, such as a restart, waits until it is there"
    return f"the {'workers restart' if _is_under_way(ctx) else 'job begins'} when it is there"


def _policy_wait(ctx: ReconcileContext) -> Wait | None:
    """Wait if no admission policy has checked the job's restricted fields.

    Only the API server knows the author of the job and their permissions.
    """
    since = ctx.cluster.policy_since
    if not ctx.spec.restricted_fields or (since is not None and ctx.meta.created >= since):
        return None
    lacks = "is not installed" if since is None else "was installed after the creation of the job"
    message = (
        f"spec: {', '.join(ctx.spec.restricted_fields)} requires permissions that ValidatingAdmissionPolicy "
        f"{n.JOB_POLICY} checks, but the policy {lacks}. Apply config/admission.yaml, then create the job again."
    )
    return Wait(reason=n.REASON_POLICY_MISSING, message=message, requeue_after=SCHEDULER_SECONDS)


def accepted_conditions(ctx: ReconcileContext, attempt: AttemptSpec) -> tuple[Condition, ...]:
    """Return the conditions of a valid job. Accepted names decisions that the user may not expect."""
    found = None if attempt.spec.launcher else detect_launcher(attempt.spec.command, attempt.spec.args)
    unknown = found.unknown if found is not None else ""
    once = (
        f"the command runs once on each node, without torchrun: {unknown} is not known to be a plain program; "
        "launcher: torchrun starts it once for each GPU"
    )
    messages = [once if unknown else "", _unretained_claims(ctx, attempt)]
    return valid_conditions(attempt.settings, "; ".join(filter(None, messages)))


def _unretained_claims(ctx: ReconcileContext, attempt: AttemptSpec) -> str:
    """Return a message about claims without `retain` at their creation, and how to keep them; "" for none.

    The garbage collector deletes them with the job. The controller has no permission to change claims.
    """
    names = [
        each.name
        for each in attempt.storage.claims
        if each.retain
        and (live := ctx.children.objects.get(("PersistentVolumeClaim", each.name))) is not None
        and live["metadata"].get("ownerReferences")
    ]
    patch = '[{"op": "remove", "path": "/metadata/ownerReferences"}]'
    message = (
        "is deleted with the job, because it was created before its queue retained it: "
        f"{', '.join(names)}. To keep it: "
        f"kubectl patch pvc -n {attempt.namespace} {' '.join(names)} --type json -p '{patch}'"
    )
    return message if names else ""


def _wait_for_workspace(ctx: ReconcileContext, attempt: AttemptSpec) -> NodesPending | None:
    """Return the wait for the workspace, without placeholders; None if the workspace is there."""
    wait = workspace_wait(ctx, attempt)
    return pending_without_nodes(ctx, n.REASON_WAITING_FOR_WORKSPACE, *wait) if wait is not None else None


def _count_leaving(ctx: ReconcileContext) -> int:
    """Return the number of unfinished workers of earlier attempts. Each one has a node or may get one."""
    earlier = [each for each in ctx.children.workers if each.attempt != ctx.status.attempt]
    return sum(not each.finished for each in (*ctx.children.orphans, *earlier))


def delete_jobs(jobs: Iterable[AttemptJob]) -> tuple[Deletion, ...]:
    """Delete Jobs after their pods, and only if they have not changed since the read.

    In the meantime, the status may have named the attempt of such a Job, or the Job may have succeeded.
    """
    return tuple(deletion(each.item, foreground=True, as_read=True) for each in jobs if not each.deleting)


def _old_groups(ctx: ReconcileContext) -> list[Deletion]:
    name = n.attempt_name(ctx.meta.name, ctx.status.attempt)
    return deletions_of(
        item for (kind, each), item in ctx.children.objects.items() if kind == "PodGroup" and each != name
    )


def _unfit_groups(ctx: ReconcileContext, prepared: AttemptSpec | Wait) -> list[JsonObject]:
    """Return the attempt's PodGroup if it was created for another size, or for another queue of KAI."""
    if not isinstance(prepared, AttemptSpec) or not prepared.settings.gang:
        return []
    wanted = build_pod_group(prepared)
    mine = ctx.children.objects.get(object_key(wanted))
    is_resumed = any(not each.suspended for each in ctx.children.of(ctx.status.attempt))
    if mine is None or "deletionTimestamp" in mine["metadata"] or is_resumed:
        return []
    alike = contains(mine["metadata"].get("annotations"), wanted["metadata"]["annotations"])
    return [] if alike else [mine]


def _is_up_to_date(job: AttemptJob, wanted: list[JsonObject]) -> bool:
    """Return whether an existing Job has the wanted spec. All Jobs of an attempt must have the same spec.

    Later changes of the queue do not matter for a running Job, because the status already names its attempt.
    """
    alike = next((each for each in wanted if each["metadata"]["name"] == job.name), None)
    if job.deleting or job.failed or alike is None or job.pods != alike["spec"]["completions"]:
        return False
    asks = {**alike["metadata"]["annotations"]}
    if not job.suspended:
        del asks[n.ANNOTATION_MADE_OF]
    return contains(job.item["metadata"].get("annotations"), asks)


def requested(ctx: ReconcileContext) -> tuple[str, str]:
    """Return the size and the workspace digest of the spec, as Jobs have them in annotations."""
    return ctx.spec.size_key, ctx.spec.workspace.digest if ctx.spec.workspace is not None else ""


def _next_step(
    ctx: ReconcileContext,
    prepared: AttemptSpec | Wait,
    outdated: list[AttemptJob],
    groups: list[JsonObject],
    choice: NodesChosen | NodesPending | None,
) -> ReconcilePlan:
    """Return the first reason why the job is Pending. Without one, create the attempt's objects."""

    def pending(
        reason: str, message: str, conditions: Sequence[Condition], after: float | None = None, **fields: Any
    ) -> ReconcilePlan:
        restarts = ctx.status.phase == n.PHASE_RESTARTING
        return ctx.write(
            n.PHASE_RESTARTING if restarts else n.PHASE_PENDING,
            reason,
            message,
            conditions=(*conditions, *_NOT_RUNNING),
            requeue_after=after,
            **{"workers": ctx.count_workers(), "capacity": None, **fields},
        )

    if isinstance(prepared, Wait):
        # After the start, the job does not fail, because the user may correct the queue again.
        if prepared.reason == n.REASON_INVALID_SPEC and not ctx.has_started:
            return ctx.end(n.PHASE_FAILED, prepared.reason, prepared.message, None)
        return pending(prepared.reason, prepared.message, prepared.conditions, prepared.requeue_after)
    conditions = accepted_conditions(ctx, prepared)
    pause, left = backoff(ctx)
    if left > 0:
        return pending(n.REASON_BACKING_OFF, pause, conditions, left)
    wanted = [*supporting_objects(prepared), *build_jobs(prepared)]
    taken = _name_conflict(ctx, wanted)
    remaining = _remaining_objects(ctx, outdated, groups)
    if remaining and not (taken and not outdated):  # the wait for nodes starts later
        return pending(n.REASON_STOPPING, remaining, conditions)
    if isinstance(choice, NodesPending):
        if prepared.settings.queue.scheduling.pool:
            lack = Condition(n.CAPACITY_AVAILABLE, False, choice.reason, choice.message)
            conditions = (*conditions, lack)
        # These objects need no node. Without the sync pod, the workspace never arrives.
        wanted = [build_service(prepared), *([build_sync_pod(prepared)] if prepared.sync else [])]
        taken = _name_conflict(ctx, wanted)
        reason, message = (n.REASON_NAME_TAKEN, taken) if taken else (choice.reason, choice.message)
        capacity = choice.capacity.to_status() if choice.capacity is not None else None
        plan = pending(reason, message, conditions, POLL_SECONDS if taken else None, capacity=capacity)
        return replace(plan, creations=() if taken else missing_objects(ctx, wanted))
    if taken:
        capacity = ctx.status.raw.get("capacity")
        return pending(n.REASON_NAME_TAKEN, taken, conditions, POLL_SECONDS, capacity=capacity)
    counted = unknown_capacity(ctx, "NoPool")
    if choice is not None:
        counted = (Condition(n.CAPACITY_AVAILABLE, True, n.REASON_COUNTED, choice.message),)
    size = prepared.size
    plan = ctx.write(
        n.PHASE_PROVISIONING,
        n.REASON_STARTING,
        f"attempt {ctx.status.attempt} starts; nodes: {size.nodes}, GPUs on each: {size.gpus}",
        conditions=(*conditions, *_NOT_RUNNING, *counted),
        requeue_after=0.0,
        nodes=size.nodes,
        gpusPerNode=size.gpus,
        gpus=size.total_gpus,
        workers=ctx.count_workers(),
        workspaceDigest=ctx.spec.workspace.digest if ctx.spec.workspace is not None else None,
        capacity=None,
        logs={"url": prepared.logs, "image": ctx.cluster.tools_image} if prepared.logs else None,
    )
    return replace(plan, creations=missing_objects(ctx, wanted), resumes_created=True)


def unknown_capacity(ctx: ReconcileContext, reason: str) -> tuple[Condition, ...]:
    """Return the condition CapacityAvailable with status Unknown, if the job already has this condition."""
    known = n.CAPACITY_AVAILABLE in ctx.status.conditions
    return (Condition(n.CAPACITY_AVAILABLE, None, reason),) if known else ()


def supporting_objects(attempt: AttemptSpec) -> list[JsonObject]:
    """Return all objects of an attempt except its Jobs, in the order of creation."""
    gang = [build_pod_group(attempt)] if attempt.settings.gang else []
    sync = [build_sync_pod(attempt)] if attempt.sync else []
    claims = [build_claim(attempt, each) for each in attempt.storage.claims]
    return [build_service(attempt), *claims, *sync, *gang]


def object_key(item: JsonObject) -> tuple[str, str]:
    """Return the kind and the name of an object."""
    return item["kind"], item["metadata"]["name"]


def missing_objects(ctx: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Return the objects that do not exist."""
    jobs = [("Job", each.name) for each in ctx.children.jobs]
    there = {*ctx.children.objects, *jobs, *ctx.children.others}
    return tuple(each for each in wanted if object_key(each) not in there)


def changed_services(ctx: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Return a patch for a changed Service. The other objects can't be changed, or belong to others."""
    return tuple(
        {**each, "metadata": {**each["metadata"], "uid": live["metadata"]["uid"]}}
        for each in wanted
        if each["kind"] == "Service"
        and (live := ctx.children.objects.get(object_key(each))) is not None
        and not contains(live, each)
    )


def _remaining_objects(ctx: ReconcileContext, outdated: list[AttemptJob], groups: list[JsonObject]) -> str:
    """Return which objects of other attempts must be gone first; "" for none. Two attempts never run at once."""
    pods = [
        *(each for each in ctx.children.orphans if not each.finished),
        *(each for each in ctx.children.workers if each.attempt != ctx.status.attempt),
    ]
    objects = [
        *(f"Job {each.name}" for each in outdated),
        *(f"pod {each.name} on {each.node or 'no node'}" for each in pods),
        *(f"PodGroup {each['metadata']['name']}" for each in groups),
    ]
    if not objects:
        return ""
    lost = "; if a node does not answer, delete it" if any(each.deleting for each in pods) else ""
    return f"waits until the workers before are gone: {_list(objects)}{lost}{orphan_hint(pods)}"


def _list(objects: list[str]) -> str:
    more = f" and {len(objects) - _SHOWN} more" if len(objects) > _SHOWN else ""
    return f"{', '.join(objects[:_SHOWN])}{more}"


def orphan_hint(pods: Iterable[Worker]) -> str:
    """Return how to delete workers whose Job was deleted with `--cascade=orphan`; "" for none."""
    kept = [each.name for each in pods if not each.job and not each.deleting]
    return f"; no Job owns {kept[0]} any more: kubectl delete pod {' '.join(kept[:3])}" if kept else ""


def _name_conflict(ctx: ReconcileContext, wanted: list[JsonObject]) -> str:
    """Return which existing objects have a name that the job needs, and when the job begins; "" for none."""
    keys = [object_key(each) for each in wanted]
    others = {key: ctx.children.others[key]["metadata"] for key in keys if key in ctx.children.others}
    if others:
        verb, they = ("belongs", "it is") if len(others) == 1 else ("belong", "they are")
        objects = _list([" ".join(key) for key in others])
        message = f"{objects} {verb} to something else; the job begins when {they} gone"
        if not all(_is_left_behind(meta) for meta in others.values()):
            return message
        names = " ".join(f"{kind.lower()}/{name}" for kind, name in others)
        return f"{message}: kubectl delete {names}, which an earlier job of the name left"
    for kind, name in keys:
        mine = ctx.children.objects.get((kind, name))
        if mine is not None and "deletionTimestamp" in mine["metadata"]:
            return f"{kind} {name} is being deleted; the job begins when it is gone"
    return ""


def _is_left_behind(meta: JsonObject) -> bool:
    """Return whether an earlier job of this name left the object. Such a job was deleted without its objects."""
    labels = meta.get("labels") or {}
    return labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY and not meta.get("ownerReferences")


def backoff(ctx: ReconcileContext) -> tuple[str, float]:
    """Return the message of the pause after a failed attempt and its remaining seconds; "" and 0 for none.

    The first restart has no pause, the second one 10 s. Each later pause is twice as long, up to 360 s.
    """
    last, restarts = ctx.status.raw.get("lastRestart") or {}, ctx.status.restarts
    at = parse_time(last.get("time"))
    if ctx.status.phase != n.PHASE_RESTARTING or at is None or restarts < 2:
        return "", 0.0
    seconds = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(restarts - 2, 10))
    left = min(seconds, at + seconds - ctx.now)
    return f"{last.get('message')}; the restart comes {seconds:.0f} s after {last['time']}", left


def keep_failed_jobs(ctx: ReconcileContext, jobs: list[AttemptJob]) -> list[AttemptJob]:
    """Return the failed Jobs to keep during the pause after a failure. Their pods have the logs, and use no node.

    The Job controller stops the other pods of such a Job.
    """
    if backoff(ctx)[1] <= 0:
        return []
    failing = {each.job for each in ctx.children.workers if each.failed}
    return [each for each in jobs if each.failed or each.uid in failing]
