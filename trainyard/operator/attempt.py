"""Start an attempt: wait until it can start, delete leftovers, and create its objects. Pure.

`start_attempt` lists the reasons why a job is Pending, in the order in which they are reported.
The status does not name the attempt yet, so no worker runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from launcher.actions import Recount
from launcher.capacity import Submit
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.queue import parse_queue
from trainyard.operator.api.resolve import Settings, own_template
from trainyard.operator.children import build_claim, build_jobs, build_service, build_sync_pod
from trainyard.operator.context import (
    AttemptSpec,
    Condition,
    PendingReason,
    ReconcileContext,
    Rejection,
    earliest,
    valid_conditions,
)
from trainyard.operator.diagnostics import delete_ended_sync_pod, is_abandoned, workspace_wait
from trainyard.operator.gang import build_pod_group, gang_wait
from trainyard.operator.launcher_detection import detect_launcher
from trainyard.operator.launcher_flags import find_conflict
from trainyard.operator.nodes import choose_nodes, delete_placeholders, pending_without_nodes
from trainyard.operator.observe import AttemptJob
from trainyard.operator.plan import (
    POLL_SECONDS,
    SCHEDULER_SECONDS,
    Deletion,
    ReconcilePlan,
    contains,
    deletion,
    deletions_of,
    list_first,
)
from trainyard.operator.resources import (
    InvalidJob,
    Size,
    StoragePlan,
    VolumeMissing,
    distribute,
    plan_storage,
)

BACKOFF_FIRST_SECONDS: Final = 10.0
BACKOFF_MAX_SECONDS: Final = 360.0
# A pod that still exists this long after its grace period is late: its node may not answer.
LATE_SECONDS: Final = 15.0
_NOT_RUNNING: Final = (
    Condition(n.SUSPENDED, False, "NotRequested"),
    Condition(n.WORKERS_READY, False, n.REASON_STARTING),
)


def start_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """Return the plan for the first reason why the job is Pending. Without one, create the attempt's objects.

    Each plan also deletes objects of earlier attempts. The nodes are chosen before BackOff and Stopping, so that they
    start during such a pause.
    """
    if is_abandoned(ctx):
        message = (
            f"pod {n.sync_pod(ctx.meta.name)}: the workspace did not arrive within {n.SYNC_ABANDONED_SECONDS} s, "
            "perhaps because kubectl torchrun submit was stopped. Submit the job again."
        )
        return ctx.end(n.PHASE_FAILED, n.REASON_WORKSPACE_NOT_SENT, message)
    pause = find_backoff(ctx)
    deletions = _delete_leftovers(ctx, pause, ctx.children.jobs)
    prepared = prepare_attempt(ctx, ctx.status.attempt)
    if isinstance(prepared, Rejection):
        return replace(ctx.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, prepared.message), deletions=deletions)
    if isinstance(prepared, PendingReason):  # a policy, the queue, the scheduler, the spec or a volume
        return _report_pending(ctx, prepared, deletions)
    if gang := gang_wait(ctx, prepared):  # KaiQueueNotFound, KaiQueueLimit
        return _report_pending(ctx, gang, deletions)
    choice = _choose_nodes(ctx, prepared)
    if isinstance(choice, Recount):
        return ReconcilePlan(recount=True)
    node_wait = choice if isinstance(choice, PendingReason) else None
    attempt = _resize(ctx, prepared, choice.nodes) if isinstance(choice, Submit) else prepared
    jobs = build_jobs(attempt)
    outdated = [job for job in ctx.children.jobs if not _is_up_to_date(ctx, job, jobs)]
    groups = _outdated_groups(ctx, attempt)
    deletions = _delete_leftovers(ctx, pause, outdated, groups, choice)
    conditions, capacity = accepted_conditions(ctx, attempt), ctx.status.raw.get("capacity")
    if pause:  # BackOff
        return _report_pending(ctx, pause, deletions, conditions, node_wait)
    wanted = [*supporting_objects(attempt), *jobs]
    conflict = _name_conflict(ctx, wanted)
    stopping = _find_leftovers(ctx, outdated, groups)
    if stopping and (outdated or not conflict):
        return _report_pending(ctx, stopping, deletions, conditions, node_wait)
    if node_wait:  # the reasons of `choose_nodes`, and WaitingForWorkspace
        if attempt.settings.queue.scheduling.pool:
            lack = Condition(n.CAPACITY_AVAILABLE, False, node_wait.reason, node_wait.message)
            conditions = (*conditions, lack)
        capacity = node_wait.capacity.to_status() if node_wait.capacity is not None else None
        # These objects need no node. Without the sync pod, the workspace never arrives.
        wanted = [build_service(attempt), *([build_sync_pod(attempt)] if attempt.spec.has_sync_pod else [])]
        conflict = _name_conflict(ctx, wanted)
        if not conflict:
            missing = missing_objects(ctx, wanted)
            return _report_pending(
                ctx, node_wait, deletions, conditions, node_wait, missing, capacity=capacity
            )
    if conflict:  # NameTaken
        return _report_pending(ctx, conflict, deletions, conditions, node_wait, capacity=capacity)
    counted = unknown_capacity(ctx, "NoPool")
    if isinstance(choice, Submit):
        counted = (Condition(n.CAPACITY_AVAILABLE, True, n.REASON_COUNTED, choice.reason),)
    size = attempt.size
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
        workspaceDigest=ctx.workspace_digest or None,
        capacity=None,
        logs={"url": attempt.logs, "image": ctx.cluster.tools_image} if attempt.logs else None,
    )
    return replace(plan, deletions=deletions, creations=missing_objects(ctx, wanted))


def _report_pending(
    ctx: ReconcileContext,
    reason: PendingReason,
    deletions: tuple[Deletion, ...],
    conditions: tuple[Condition, ...] = (),
    node_wait: PendingReason | None = None,
    creations: tuple[JsonObject, ...] = (),
    *,
    capacity: JsonObject | None = None,
) -> ReconcilePlan:
    """Return the plan of a job that is Pending or Restarting for this reason. `node_wait` is its wait for nodes."""
    plan = ctx.write(
        ctx.status.phase if ctx.status.phase == n.PHASE_RESTARTING else n.PHASE_PENDING,
        reason.reason,
        reason.message,
        conditions=(*reason.conditions, *conditions, *_NOT_RUNNING),
        requeue_after=earliest(reason.requeue_after, node_wait.requeue_after if node_wait else None),
        workers=ctx.count_workers(),
        capacity=capacity,
    )
    return replace(
        plan, deletions=deletions, creations=(*creations, *(node_wait.creations if node_wait else ()))
    )


def _delete_leftovers(
    ctx: ReconcileContext,
    pause: PendingReason | None,
    outdated: Iterable[AttemptJob],
    groups: Iterable[JsonObject] = (),
    choice: Submit | PendingReason | None = None,
) -> tuple[Deletion, ...]:
    """Delete what the attempt does not use. Failed Jobs stay during a pause, placeholders with a choice of nodes."""
    kept = failed_jobs(ctx) if pause else []
    name = n.attempt_name(ctx.meta.name, ctx.status.attempt)
    return (
        *delete_jobs(job for job in outdated if job not in kept),
        *delete_orphans(ctx),
        *deletions_of(
            group for group in ctx.children.of_kind("PodGroup") if group["metadata"]["name"] != name
        ),
        *(deletion(group, as_read=True) for group in groups),
        *delete_ended_sync_pod(ctx).deletions,
        *(delete_placeholders(ctx) if choice is None else ()),
        *(choice.deletions if isinstance(choice, PendingReason) else ()),
    )


def _choose_nodes(ctx: ReconcileContext, attempt: AttemptSpec) -> Submit | PendingReason | Recount | None:
    """Return the nodes of the pool, or the wait for them or for the workspace; None if nothing has to be awaited."""
    missing = workspace_wait(ctx, attempt)
    wait = None
    if missing is not None:
        wait = pending_without_nodes(ctx, n.REASON_WAITING_FOR_WORKSPACE, *missing)
    if not attempt.settings.queue.scheduling.pool:
        return wait
    # Each unfinished worker of an earlier attempt has a node or may get one.
    earlier = [worker for worker in ctx.children.workers if worker.attempt != ctx.status.attempt]
    leaving = sum(not worker.finished for worker in (*ctx.children.orphans, *earlier))
    return choose_nodes(ctx, attempt, leaving, wait)


def prepare_attempt(
    ctx: ReconcileContext, number: int, nodes: int | None = None
) -> AttemptSpec | PendingReason | Rejection:
    """Return the spec of an attempt, or why it can't be created. `nodes` is the size of an elastic job."""
    if ctx.problems:
        return _reject(ctx, ctx.problems)
    if not ctx.has_started and (unchecked := _policy_wait(ctx)):
        return unchecked
    settings = _find_settings(ctx)
    if not isinstance(settings, Settings):
        return settings
    spec = ctx.spec
    try:
        size = distribute(spec, settings.queue)
        # A started job is not checked again unless its size changed.
        if not ctx.has_started or any(job.size != spec.size_key for job in ctx.jobs):
            # The controller can't read scripts in the workspace.
            launcher = detect_launcher(spec.command, spec.args, variables=spec.literal_variables)
            conflict = find_conflict(spec, launcher, size, settings.rendezvous)
            if any(conflict):
                return _reject(ctx, ": ".join(filter(None, conflict)))
        size = _limit_nodes(size, nodes)
        storage = _plan_storage(ctx, settings, size)
    except InvalidJob as error:
        return _reject(ctx, str(error))
    except VolumeMissing as missing:
        return PendingReason(missing.reason, str(missing), valid_conditions(settings), POLL_SECONDS)
    return AttemptSpec(
        name=ctx.meta.name,
        namespace=ctx.meta.namespace,
        uid=ctx.meta.uid,
        spec=spec,
        settings=settings,
        size=size,
        storage=storage,
        cluster=ctx.cluster,
        number=number,
        has_started=ctx.has_started,
        nearby=ctx.nearby,
    )


def _limit_nodes(size: Size, nodes: int | None) -> Size:
    """Return the size with this number of nodes, if an elastic job may have fewer than its maximum."""
    return replace(size, nodes=nodes) if nodes is not None and size.minimum <= nodes < size.nodes else size


def _plan_storage(ctx: ReconcileContext, settings: Settings, size: Size) -> StoragePlan:
    claims = {
        claim["metadata"]["name"]: tuple((claim.get("spec") or {}).get("accessModes") or ())
        for claim in ctx.children.of_kind("PersistentVolumeClaim")
        if "deletionTimestamp" not in claim["metadata"]
    }
    return plan_storage(ctx.meta.name, ctx.spec, settings, size, ctx.cluster, claims)


def _resize(ctx: ReconcileContext, attempt: AttemptSpec, nodes: int) -> AttemptSpec:
    """Return the attempt with this number of nodes. Fewer nodes never need other storage than there is."""
    size = _limit_nodes(attempt.size, nodes)
    return replace(attempt, size=size, storage=_plan_storage(ctx, attempt.settings, size))


def _find_settings(ctx: ReconcileContext) -> Settings | PendingReason | Rejection:
    """Return the settings of a job whose queue and scheduler are there, or why there are none."""
    spec, queue = ctx.spec, ctx.queue
    deleting = queue is not None and "deletionTimestamp" in queue["metadata"]
    is_under_way = ctx.status.phase not in ("", n.PHASE_PENDING, n.PHASE_SUSPENDED)
    # A queue that is being deleted keeps its running jobs, but starts no others.
    if queue is None or (deleting and not is_under_way):
        lacks = "is being deleted" if deleting else f"is not in namespace {ctx.meta.namespace}"
        effect = f"The {'workers then restart' if is_under_way else 'job then starts'}."
        if ctx.status.running:
            effect = "The workers go on, but a restart waits for the queue."
        message = f"TorchrunQueue {spec.job_queue} {lacks}. Create it{' again' if deleting else ''}. {effect}"
        missing = Condition(n.QUEUE_FOUND, False, n.REASON_QUEUE_NOT_FOUND, message)
        return PendingReason(n.REASON_QUEUE_NOT_FOUND, message, (missing,))
    settings, problems = ctx.resolved
    if settings is None:
        _, own = parse_queue(queue.get("spec") or {})
        if not own:
            return _reject(ctx, "; ".join(problems))
        message = f"TorchrunQueue {spec.job_queue}: {'; '.join(own)}"
        return PendingReason(n.REASON_QUEUE_INVALID, message, (Condition(n.QUEUE_FOUND, True, "Found"),))
    # A job that started under an earlier version of the program continues.
    if not ctx.has_started and (errors := own_template(spec)):
        return _reject(ctx, "; ".join(errors))
    if settings.gang and not ctx.cluster.kai:
        message = (
            f"scheduling.scheduler is {n.KAI_SCHEDULER}, whose API is not installed. Install KAI Scheduler. The job "
            "then starts."
        )
        conditions = valid_conditions(settings, missing_scheduler=message)
        return PendingReason(n.REASON_SCHEDULER_NOT_INSTALLED, message, conditions, SCHEDULER_SECONDS)
    return settings


def _reject(ctx: ReconcileContext, message: str) -> PendingReason | Rejection:
    """Reject a job. After its start it is Pending instead, because the user may correct the queue again."""
    if not ctx.has_started:
        return Rejection(message)
    invalid = Condition(n.ACCEPTED, False, n.REASON_INVALID_SPEC, message)
    return PendingReason(n.REASON_INVALID_SPEC, message, (invalid, Condition(n.QUEUE_FOUND, True, "Found")))


def _policy_wait(ctx: ReconcileContext) -> PendingReason | None:
    """Return the reason PolicyMissing if no admission policy has checked the job's restricted fields.

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
    return PendingReason(n.REASON_POLICY_MISSING, message, requeue_after=SCHEDULER_SECONDS)


def accepted_conditions(ctx: ReconcileContext, attempt: AttemptSpec) -> tuple[Condition, ...]:
    """Return the conditions of a valid job. Accepted names decisions that the user may not expect."""
    messages, spec = [], attempt.spec
    found = None
    if not spec.launcher:
        found = detect_launcher(spec.command, spec.args, variables=spec.literal_variables)
    if found is not None and found.unknown:
        messages.append(
            f"the command runs once on each node, without torchrun: {found.unknown} is not known to be a plain "
            "program; launcher: torchrun starts it once for each GPU"
        )
    # Claims that were created without `retain`: the controller has no permission to change them.
    claims = (
        (claim, ("PersistentVolumeClaim", claim.name)) for claim in attempt.storage.claims if claim.retain
    )
    live = {claim.name: ctx.children.objects[key] for claim, key in claims if key in ctx.children.objects}
    owned = [name for name, item in live.items() if item["metadata"].get("ownerReferences")]
    if owned:
        messages.append(
            "is deleted with the job, because it was created before its queue retained it: "
            f"{', '.join(owned)}. To keep it: kubectl patch pvc -n {attempt.namespace} {' '.join(owned)} --type json "
            """-p '[{"op": "remove", "path": "/metadata/ownerReferences"}]'"""
        )
    return valid_conditions(attempt.settings, "; ".join(messages))


def unknown_capacity(ctx: ReconcileContext, reason: str) -> tuple[Condition, ...]:
    """Return the condition CapacityAvailable with status Unknown, if the job already has this condition."""
    known = n.CAPACITY_AVAILABLE in ctx.status.conditions
    return (Condition(n.CAPACITY_AVAILABLE, None, reason),) if known else ()


def supporting_objects(attempt: AttemptSpec) -> list[JsonObject]:
    """Return all objects of an attempt except its Jobs, in the order of creation."""
    gang = [build_pod_group(attempt)] if attempt.settings.gang else []
    sync = [build_sync_pod(attempt)] if attempt.spec.has_sync_pod else []
    claims = [build_claim(attempt, claim) for claim in attempt.storage.claims]
    return [build_service(attempt), *claims, *sync, *gang]


def object_key(item: JsonObject) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def missing_objects(ctx: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Return the objects that do not exist."""
    jobs = [("Job", job.name) for job in ctx.children.jobs]
    existing = {*ctx.children.objects, *jobs, *ctx.children.foreign_objects}
    return tuple(manifest for manifest in wanted if object_key(manifest) not in existing)


def delete_jobs(jobs: Iterable[AttemptJob]) -> tuple[Deletion, ...]:
    """Delete Jobs after their pods, and only if they have not changed since the read.

    In the meantime, the status may have named the attempt of such a Job, or the Job may have succeeded.
    """
    return tuple(deletion(job.item, foreground=True, as_read=True) for job in jobs if not job.deleting)


def delete_orphans(ctx: ReconcileContext) -> list[Deletion]:
    """Delete workers whose Job was deleted with `--cascade=orphan`, which nothing else deletes."""
    return deletions_of(pod.item for pod in ctx.children.orphans if not (pod.job or pod.finished))


def _outdated_groups(ctx: ReconcileContext, attempt: AttemptSpec) -> list[JsonObject]:
    """Return the attempt's PodGroup if it was created for another size, or for another queue of KAI."""
    if not attempt.settings.gang or any(not job.suspended for job in ctx.jobs):
        return []
    wanted = build_pod_group(attempt)
    live = ctx.children.objects.get(object_key(wanted))
    if live is None or "deletionTimestamp" in live["metadata"]:
        return []
    same = contains(live["metadata"].get("annotations"), wanted["metadata"]["annotations"])
    return [] if same else [live]


def _is_up_to_date(ctx: ReconcileContext, job: AttemptJob, wanted: list[JsonObject]) -> bool:
    """Return whether an existing Job has the wanted spec. All Jobs of an attempt must have the same spec.

    Later changes of the queue do not matter for a running Job, because the status already names its attempt.
    """
    same = next((manifest for manifest in wanted if manifest["metadata"]["name"] == job.name), None)
    if job.attempt != ctx.status.attempt or job.deleting or job.failed or same is None:
        return False
    annotations = {**same["metadata"]["annotations"]}
    if not job.suspended:
        del annotations[n.ANNOTATION_MADE_OF]
    live = job.item["metadata"].get("annotations")
    return bool(job.pods == same["spec"]["completions"]) and contains(live, annotations)


def failed_jobs(ctx: ReconcileContext) -> list[AttemptJob]:
    """Return the failed Jobs, and those with a failed pod, which the Job controller is about to fail.

    They stay until the next attempt. Their pods have the logs, and use no node: the Job controller stops the others.
    """
    failing = {worker.job for worker in ctx.children.workers if worker.failed}
    return [job for job in ctx.children.jobs if job.failed or job.uid in failing]


def _find_leftovers(
    ctx: ReconcileContext, outdated: list[AttemptJob], groups: list[JsonObject]
) -> PendingReason | None:
    """Return which objects of other attempts must be gone first, because two attempts never run at once."""
    pods = [
        *(pod for pod in ctx.children.orphans if not pod.finished),
        *(worker for worker in ctx.children.workers if worker.attempt != ctx.status.attempt),
    ]
    objects = [
        *(f"Job {job.name}" for job in outdated),
        *(f"pod {pod.name} on {pod.node or 'no node'}" for pod in pods),
        *(f"PodGroup {group['metadata']['name']}" for group in groups),
    ]
    if not objects:
        return None
    message = f"the workers of the earlier attempt stop: {list_first(objects)}"
    deleted = earliest(*(parse_time(pod.item["metadata"].get("deletionTimestamp")) for pod in pods))
    late_after = None if deleted is None else deleted + LATE_SECONDS - ctx.now
    if late_after is not None and late_after <= 0:
        message += ". This takes longer than usual. If a node does not answer, delete it"
        late_after = None
    return PendingReason(n.REASON_STOPPING, message, requeue_after=late_after)


def _name_conflict(ctx: ReconcileContext, wanted: list[JsonObject]) -> PendingReason | None:
    """Return which existing objects have a name that the job needs."""
    keys = [object_key(manifest) for manifest in wanted]
    foreign = [key for key in keys if key in ctx.children.foreign_objects]
    if foreign:
        objects = list_first([" ".join(key) for key in foreign])
        message = f"{objects}: the job needs this name, which is taken. Delete the object, or rename the job."
        return PendingReason(n.REASON_NAME_TAKEN, message, requeue_after=POLL_SECONDS)
    for kind, name in keys:
        if "deletionTimestamp" in ctx.children.objects.get((kind, name), {}).get("metadata", {}):
            message = f"{kind} {name} is being deleted. The job starts when it is gone."
            return PendingReason(n.REASON_NAME_TAKEN, message, requeue_after=POLL_SECONDS)
    return None


def find_backoff(ctx: ReconcileContext) -> PendingReason | None:
    """Return the rest of the pause after a failed attempt.

    The first restart has no pause, the second one 10 s. Each later pause is twice as long, up to 360 s.
    """
    last, restarts = ctx.status.raw.get("lastRestart") or {}, ctx.status.restarts
    at = parse_time(last.get("time"))
    if ctx.status.phase != n.PHASE_RESTARTING or at is None or restarts < 2:
        return None
    seconds = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(restarts - 2, 10))
    left = min(seconds, at + seconds - ctx.now)
    message = f"{last.get('message')}; the restart comes {seconds:.0f} s after {last['time']}"
    return PendingReason(n.REASON_BACKING_OFF, message, requeue_after=left) if left > 0 else None
