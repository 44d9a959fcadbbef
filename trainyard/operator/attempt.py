"""Start an attempt: wait until it can start, delete leftovers, and create its objects. Pure.

`start_attempt` sets the reason of a Pending job. `prepare_attempt` finds reasons in the specs of the job and its queue,
`_advance` in their objects. The status does not name the attempt yet, so no worker runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from launcher.capacity import Submit
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject, parse_time
from trainyard.operator.api.queue import parse_queue
from trainyard.operator.api.resolve import Settings, own_template
from trainyard.operator.children import build_claim, build_jobs, build_service, build_sync_pod
from trainyard.operator.context import (
    AttemptSpec,
    Condition,
    ReconcileContext,
    Wait,
    earliest,
    valid_conditions,
)
from trainyard.operator.diagnostics import ended_sync_pod, is_abandoned, workspace_wait
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
from trainyard.operator.resources import InvalidJob, VolumeMissing, distribute, plan_storage

BACKOFF_FIRST_SECONDS: Final = 10.0
BACKOFF_MAX_SECONDS: Final = 360.0
# A pod that still exists this long after its grace period is late: its node may not answer.
LATE_SECONDS: Final = 15.0
_NOT_RUNNING: Final = (
    Condition(n.SUSPENDED, False, "NotRequested"),
    Condition(n.WORKERS_READY, False, n.REASON_STARTING),
)


def start_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """Return the next step towards the attempt that the status names."""
    if is_abandoned(ctx):
        message = (
            f"pod {n.sync_pod(ctx.meta.name)}: the workspace did not arrive within {n.SYNC_ABANDONED_SECONDS} s, "
            "perhaps because kubectl torchrun submit was stopped. Submit the job again."
        )
        return ctx.end(n.PHASE_FAILED, n.REASON_WORKSPACE_NOT_SENT, message)
    attempt = prepare_attempt(ctx, ctx.status.attempt)
    if isinstance(attempt, AttemptSpec):
        attempt = gang_wait(ctx, attempt) or attempt
    choice = _choose_nodes(ctx, attempt) if isinstance(attempt, AttemptSpec) else None
    if isinstance(choice, Wait) and choice.recount:
        return ReconcilePlan(recount=True)
    if isinstance(choice, Submit):
        attempt = prepare_attempt(ctx, ctx.status.attempt, choice.nodes)
    jobs = build_jobs(attempt) if isinstance(attempt, AttemptSpec) else []
    outdated = [each for each in ctx.children.jobs if not _is_up_to_date(ctx, each, jobs)]
    groups = _outdated_groups(ctx, attempt)
    plan = _advance(ctx, attempt, choice, outdated, groups, jobs)
    kept = failed_jobs(ctx) if backoff(ctx)[1] > 0 else []
    name = n.attempt_name(ctx.meta.name, ctx.status.attempt)
    deletions = (
        *delete_jobs(each for each in outdated if each not in kept),
        *delete_orphans(ctx),
        *deletions_of(each for each in ctx.children.of_kind("PodGroup") if each["metadata"]["name"] != name),
        *(deletion(each, as_read=True) for each in groups),
        *ended_sync_pod(ctx)[0],
        *(delete_placeholders(ctx) if choice is None else ()),
    )
    if not isinstance(choice, Wait):
        return replace(plan, deletions=deletions)
    return replace(
        plan,
        deletions=(*deletions, *choice.deletions),
        creations=(*plan.creations, *choice.creations),
        requeue_after=earliest(choice.requeue_after, plan.requeue_after),
    )


def _choose_nodes(ctx: ReconcileContext, attempt: AttemptSpec) -> Submit | Wait | None:
    """Return the nodes of the pool, or the wait for them or for the workspace; None if nothing has to be awaited."""
    missing = workspace_wait(ctx, attempt)
    wait = None
    if missing is not None:
        wait = pending_without_nodes(ctx, n.REASON_WAITING_FOR_WORKSPACE, *missing)
    if not attempt.settings.queue.scheduling.pool:
        return wait
    # Each unfinished worker of an earlier attempt has a node or may get one.
    earlier = [each for each in ctx.children.workers if each.attempt != ctx.status.attempt]
    leaving = sum(not each.finished for each in (*ctx.children.orphans, *earlier))
    return choose_nodes(ctx, attempt, leaving, wait)


def _wait(
    ctx: ReconcileContext, wait: Wait, creations: tuple[JsonObject, ...] = (), **fields: Any
) -> ReconcilePlan:
    """Return the plan of a job that is Pending or Restarting for this reason."""
    # After the start, the job does not fail, because the user may correct the queue again.
    if wait.reason == n.REASON_INVALID_SPEC and not ctx.has_started:
        return ctx.end(n.PHASE_FAILED, wait.reason, wait.message)
    plan = ctx.write(
        ctx.status.phase if ctx.status.phase == n.PHASE_RESTARTING else n.PHASE_PENDING,
        wait.reason,
        wait.message,
        conditions=(*wait.conditions, *_NOT_RUNNING),
        requeue_after=wait.requeue_after,
        **{"workers": ctx.count_workers(), "capacity": None, **fields},
    )
    return replace(plan, creations=creations)


def _advance(
    ctx: ReconcileContext,
    attempt: AttemptSpec | Wait,
    choice: Submit | Wait | None,
    outdated: list[AttemptJob],
    groups: list[JsonObject],
    jobs: list[JsonObject],
) -> ReconcilePlan:
    """Return the first reason why the job is Pending. Without one, create the attempt's objects.

    The outdated Jobs and the groups must be gone first. `choice` is the nodes of a pool, or the wait for them.
    """
    if isinstance(attempt, Wait):
        return _wait(ctx, attempt)
    conditions, capacity = accepted_conditions(ctx, attempt), ctx.status.raw.get("capacity")
    pause, left = backoff(ctx)
    if left > 0:
        return _wait(ctx, Wait(n.REASON_BACKING_OFF, pause, conditions, left))
    wanted = [*supporting_objects(attempt), *jobs]
    conflict = _name_conflict(ctx, wanted)
    remaining, late_after = _describe_remaining(ctx, outdated, groups)
    if remaining and (outdated or not conflict):  # the wait for nodes starts later
        return _wait(ctx, Wait(n.REASON_STOPPING, remaining, conditions, late_after))
    if isinstance(choice, Wait):
        if attempt.settings.queue.scheduling.pool:
            lack = Condition(n.CAPACITY_AVAILABLE, False, choice.reason, choice.message)
            conditions = (*conditions, lack)
        capacity = choice.capacity.to_status() if choice.capacity is not None else None
        # These objects need no node. Without the sync pod, the workspace never arrives.
        wanted = [build_service(attempt), *([build_sync_pod(attempt)] if attempt.spec.has_sync_pod else [])]
        conflict = _name_conflict(ctx, wanted)
        if not conflict:
            wait = Wait(choice.reason, choice.message, conditions)
            return _wait(ctx, wait, missing_objects(ctx, wanted), capacity=capacity)
    if conflict:
        return _wait(ctx, Wait(n.REASON_NAME_TAKEN, conflict, conditions, POLL_SECONDS), capacity=capacity)
    counted = unknown_capacity(ctx, "NoPool")
    if choice is not None:
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
    return replace(plan, creations=missing_objects(ctx, wanted))


def prepare_attempt(ctx: ReconcileContext, number: int, nodes: int | None = None) -> AttemptSpec | Wait:
    """Return the spec of an attempt, or why it can't be created. `nodes` is the size of an elastic job."""
    if ctx.problems:
        return _refuse(ctx.problems)
    if not ctx.has_started and (unchecked := _policy_wait(ctx)):
        return unchecked
    settings = _find_settings(ctx)
    if isinstance(settings, Wait):
        return settings
    spec, meta, conditions = ctx.spec, ctx.meta, valid_conditions(settings)
    try:
        size = distribute(spec, settings.queue)
        # A started job is not checked again unless its size changed.
        if not ctx.has_started or any(each.size != spec.size_key for each in ctx.jobs):
            # The controller can't read scripts in the workspace.
            launcher = detect_launcher(spec.command, spec.args, variables=spec.literal_variables)
            conflict = find_conflict(spec, launcher, size, settings.rendezvous)
            if any(conflict):
                return _refuse(": ".join(filter(None, conflict)))
        if nodes is not None and size.minimum <= nodes < size.nodes:
            size = replace(size, nodes=nodes)
        claims = {
            each["metadata"]["name"]: tuple((each.get("spec") or {}).get("accessModes") or ())
            for each in ctx.children.of_kind("PersistentVolumeClaim")
            if "deletionTimestamp" not in each["metadata"]
        }
        storage = plan_storage(meta.name, spec, settings, size, ctx.cluster, claims)
    except InvalidJob as error:
        return _refuse(str(error))
    except VolumeMissing as missing:
        return Wait(missing.reason, str(missing), conditions, POLL_SECONDS)
    return AttemptSpec(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        spec=spec,
        settings=settings,
        size=size,
        storage=storage,
        cluster=ctx.cluster,
        number=number,
        has_started=ctx.has_started,
        nearby=ctx.nearby,
    )


def _find_settings(ctx: ReconcileContext) -> Settings | Wait:
    """Return the settings of a job whose queue and scheduler are there, or the wait for them."""
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
        return Wait(n.REASON_QUEUE_NOT_FOUND, message, (missing,))
    settings, problems = ctx.resolved
    if settings is None:
        _, own = parse_queue(queue.get("spec") or {})
        if not own:
            return _refuse("; ".join(problems))
        message = f"TorchrunQueue {spec.job_queue}: {'; '.join(own)}"
        return Wait(n.REASON_QUEUE_INVALID, message, (Condition(n.QUEUE_FOUND, True, "Found"),))
    # A job that started under an earlier version of the program continues.
    if not ctx.has_started and (errors := own_template(spec)):
        return _refuse("; ".join(errors))
    if settings.gang and not ctx.cluster.kai:
        message = (
            f"scheduling.scheduler is {n.KAI_SCHEDULER}, whose API is not installed. Install KAI Scheduler. The job "
            "then starts."
        )
        conditions = valid_conditions(settings, missing_scheduler=message)
        return Wait(n.REASON_SCHEDULER_NOT_INSTALLED, message, conditions, SCHEDULER_SECONDS)
    return settings


def _refuse(message: str) -> Wait:
    """Return the wait with reason InvalidSpec and this message."""
    invalid = Condition(n.ACCEPTED, False, n.REASON_INVALID_SPEC, message)
    return Wait(n.REASON_INVALID_SPEC, message, (invalid, Condition(n.QUEUE_FOUND, True, "Found")))


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
    return Wait(n.REASON_POLICY_MISSING, message, requeue_after=SCHEDULER_SECONDS)


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
    claims = ((each, ("PersistentVolumeClaim", each.name)) for each in attempt.storage.claims if each.retain)
    live = {each.name: ctx.children.objects[key] for each, key in claims if key in ctx.children.objects}
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
    claims = [build_claim(attempt, each) for each in attempt.storage.claims]
    return [build_service(attempt), *claims, *sync, *gang]


def object_key(item: JsonObject) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def missing_objects(ctx: ReconcileContext, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Return the objects that do not exist."""
    jobs = [("Job", each.name) for each in ctx.children.jobs]
    existing = {*ctx.children.objects, *jobs, *ctx.children.foreign_objects}
    return tuple(each for each in wanted if object_key(each) not in existing)


def delete_jobs(jobs: Iterable[AttemptJob]) -> tuple[Deletion, ...]:
    """Delete Jobs after their pods, and only if they have not changed since the read.

    In the meantime, the status may have named the attempt of such a Job, or the Job may have succeeded.
    """
    return tuple(deletion(each.item, foreground=True, as_read=True) for each in jobs if not each.deleting)


def delete_orphans(ctx: ReconcileContext) -> list[Deletion]:
    """Delete workers whose Job was deleted with `--cascade=orphan`. Nothing else does."""
    return deletions_of(each.item for each in ctx.children.orphans if not (each.job or each.finished))


def _outdated_groups(ctx: ReconcileContext, attempt: AttemptSpec | Wait) -> list[JsonObject]:
    """Return the attempt's PodGroup if it was created for another size, or for another queue of KAI."""
    if isinstance(attempt, Wait) or not attempt.settings.gang or any(not each.suspended for each in ctx.jobs):
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
    same = next((each for each in wanted if each["metadata"]["name"] == job.name), None)
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
    failing = {each.job for each in ctx.children.workers if each.failed}
    return [each for each in ctx.children.jobs if each.failed or each.uid in failing]


def _describe_remaining(
    ctx: ReconcileContext, outdated: list[AttemptJob], groups: list[JsonObject]
) -> tuple[str, float | None]:
    """Return which objects of other attempts must be gone first, and the seconds until one is late; "" for none.

    Two attempts never run at once.
    """
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
        return "", None
    message = f"the workers of the earlier attempt stop: {list_first(objects)}"
    first = earliest(*(parse_time(each.item["metadata"].get("deletionTimestamp")) for each in pods))
    late_after = None if first is None else first + LATE_SECONDS - ctx.now
    if late_after is not None and late_after <= 0:
        return f"{message}. This takes longer than usual. If a node does not answer, delete it", None
    return message, late_after


def _name_conflict(ctx: ReconcileContext, wanted: list[JsonObject]) -> str:
    """Return which existing objects have a name that the job needs; "" for none."""
    keys = [object_key(each) for each in wanted]
    foreign = [key for key in keys if key in ctx.children.foreign_objects]
    if foreign:
        objects = list_first([" ".join(key) for key in foreign])
        return f"{objects}: the job needs this name, which is taken. Delete the object, or rename the job."
    leaving = (
        key for key in keys if "deletionTimestamp" in ctx.children.objects.get(key, {}).get("metadata", {})
    )
    return next(
        (f"{kind} {name} is being deleted. The job starts when it is gone." for kind, name in leaving), ""
    )


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
