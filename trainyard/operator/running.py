"""Run the attempt of a job: keep it, suspend and resume it, end or replace it, and finish the job. Pure.

The status names the attempt, so its pods may run, and its Jobs are never created again. `_restart_or_fail` counts
restarts.

A queueing system or an administrator may also suspend a Job. The controller resumes such a Job only after a pause,
because otherwise both would overwrite each other in a loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from launcher.errors import meaning
from launcher.manifests import stamp
from trainyard.k8s import names
from trainyard.operator import attempt
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.children import archive_annotation
from trainyard.operator.context import (
    MAX_MESSAGE,
    AttemptSpec,
    Condition,
    PendingReason,
    ReconcileContext,
    earliest,
)
from trainyard.operator.diagnostics import delete_ended_sync_pod, describe_workers, is_lost
from trainyard.operator.failures import AttemptEnd, Failure, find_end
from trainyard.operator.gang import relax_gang
from trainyard.operator.nodes import delete_placeholders, find_unplaced_worker, release_placeholders
from trainyard.operator.observe import AttemptJob, annotations_of
from trainyard.operator.plan import (
    POLL_SECONDS,
    PROGRESS_SECONDS,
    ReconcilePlan,
    deletion,
    deletions_of,
    resume_patch,
)

# The status keeps the last attempts, because a client that follows the job may have missed several.
MAX_ATTEMPTS: Final = 8
# What the exit codes of WORKER_FINAL_EXIT_CODES mean, for a message.
_FINAL_CODES: Final = {
    names.WORKER_EXIT_CONFIGURATION: "the command or its arguments are wrong",
    names.WORKER_EXIT_WORLD_SIZE: "the number of processes is not the expected one",
    126: "the command is not executable",
    127: "the command does not exist",
}
_STOPPING: Final = "the workers are being stopped"


def clean_up_finished(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Delete what a finished job no longer needs, and the job itself after its time to live.

    Its finished Jobs stay, because their pods have the logs.
    """
    if not ctx.status.final:
        return None
    failed = [job for job in attempt.failed_jobs(ctx) if job.attempt == ctx.status.attempt]
    jobs = [
        deletion(job.item, foreground=True)
        for job in ctx.children.jobs
        if job.uid not in ctx.children.succeeded_jobs and job not in failed and not job.deleting
    ]
    others = [item for (kind, _), item in ctx.children.objects.items() if kind in ("PodGroup", "Pod")]
    deletions = (*jobs, *attempt.delete_orphans(ctx), *deletions_of(others))
    raw, plan, settings = ctx.status.raw, ReconcilePlan(), ctx.settings
    if raw.get("observedGeneration") != ctx.meta.generation:
        plan = ctx.write(ctx.status.phase, raw.get("reason") or "", raw.get("message") or "")
    seconds = settings.time_to_live if settings is not None else ctx.spec.ttl_seconds_after_finished
    if seconds is None or ctx.status.completed is None or not ctx.is_spec_readable:
        return replace(plan, deletions=deletions)
    left = ctx.status.completed + seconds - ctx.now
    if left > 0:
        return replace(plan, deletions=deletions, requeue_after=left)
    # Delete it only if it has not changed: a user may have extended its time to live.
    return ReconcilePlan(deletions=(*deletions, deletion(ctx.job, as_read=True)))


def reject_invalid_spec(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Fail a job with an invalid spec, unless its workers have started."""
    if not ctx.problems or ctx.has_started:
        return None
    return ctx.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, ctx.problems)


def finish_succeeded(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Finish a job with enough succeeded workers, even if it is suspended or past its deadline.

    A Job reports its success after its other pods are gone. The controller waits for the report, unless something else
    ends the attempt.
    """
    number = ctx.children.succeeded_attempt
    if number is None:
        return None
    jobs = ctx.children.of(number)
    is_ending = ctx.spec.suspend or ctx.is_past_deadline or any(job.deleting for job in jobs)
    is_running = ctx.status.running and number == ctx.status.attempt
    if is_running and not is_ending and sum(job.complete for job in jobs) < jobs[0].required_jobs:
        return _keep_attempt(ctx)
    nodes, minimum, message = ctx.status.raw.get("nodes") or 0, jobs[0].minimum, "all workers succeeded"
    # The pods of succeeded workers may be gone already.
    succeeded = nodes if minimum is None else max(minimum, ctx.count_workers()["succeeded"])
    if succeeded < nodes:
        message = f"{succeeded} of {nodes} workers succeeded, and minNodes is {minimum}"
    return ctx.end(n.PHASE_SUCCEEDED, n.REASON_SUCCEEDED, message, 0)


def fail_past_deadline(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Fail a job that has run longer than activeDeadlineSeconds."""
    if not ctx.is_past_deadline:
        return None
    message = (
        f"spec.activeDeadlineSeconds: the job did not finish within {ctx.deadline_seconds} s of its first start. "
        "Increase it, and submit the job again."
    )
    return ctx.end(n.PHASE_FAILED, n.REASON_DEADLINE_EXCEEDED, message)


def suspend(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Stop the workers of a suspended job and keep its other objects. The stop does not count as a restart."""
    if not ctx.spec.suspend:
        return None
    reason, no_workers = n.REASON_SUSPENDED, Condition(n.WORKERS_READY, False, n.REASON_SUSPENDED)
    # A corrected spec is checked again at the resume.
    accepted = ctx.status.conditions.get(n.ACCEPTED, {}).get("reason")
    conditions = [no_workers]
    if ctx.problems:
        conditions.append(Condition(n.ACCEPTED, False, n.REASON_INVALID_SPEC, ctx.problems))
    elif accepted in (n.REASON_INVALID_SPEC, n.REASON_REFUSED):
        conditions.append(Condition(n.ACCEPTED, None, n.REASON_SUSPENDED, "checked when the job is resumed"))
    if ctx.status.running:
        end = find_end(ctx)
        stopping = Condition(n.SUSPENDED, False, n.REASON_STOPPING, _STOPPING)
        return ctx.write(
            n.PHASE_SUSPENDED,
            reason,
            f"suspended after {end.why}" if end is not None else "suspended",
            conditions=(*conditions, stopping),
            requeue_after=0.0,
            attempt=ctx.status.attempt + 1,
        )
    orphans = [pod for pod in ctx.children.orphans if not pod.finished]
    gone = not (ctx.children.jobs or ctx.children.workers or orphans)
    message = "the job has no workers" if gone else _STOPPING
    suspended = Condition(n.SUSPENDED, gone, reason if gone else n.REASON_STOPPING, message)
    plan = ctx.write(
        n.PHASE_SUSPENDED,
        reason,
        message,
        conditions=(*conditions, suspended, *attempt.unknown_capacity(ctx, reason)),
        workers=ctx.count_workers(),
        capacity=None,
    )
    groups = deletions_of(ctx.children.of_kind("PodGroup"))
    return replace(
        plan,
        deletions=(
            *attempt.delete_jobs(ctx.children.jobs),
            *attempt.delete_orphans(ctx),
            *groups,
            *delete_placeholders(ctx),
        ),
    )


def end_attempt(ctx: ReconcileContext) -> ReconcilePlan | None:
    """End an attempt with a failed or lost worker. The job restarts, or fails without restarts left."""
    end = find_end(ctx) if ctx.status.running else None
    if end is None:
        return None
    if end.settle_seconds > 0:
        plan = _keep_attempt(ctx)
        return replace(plan, requeue_after=earliest(end.settle_seconds, plan.requeue_after or None))
    if end.failure is not None and is_lost(ctx, end.failure.worker.end.failed_init_container):
        # The next attempt waits for the workspace without nodes, and does not count as a restart.
        message = f"{end.why}; the workspace was lost with an earlier pod {n.sync_pod(ctx.meta.name)}"
        return _next_attempt(ctx, n.REASON_WORKSPACE_LOST, message, workspaceDigest=None)
    return _restart_or_fail(ctx, end)


def _restart_or_fail(ctx: ReconcileContext, end: AttemptEnd) -> ReconcilePlan:
    """Restart or fail the job. The status counts the restart before any other write, so it is counted once."""
    limit, restarts, log = ctx.max_restarts, ctx.status.restarts, ""
    if end.failure is not None and end.failure.worker.node_rank is not None:
        which = f"--node-rank {end.failure.worker.node_rank} --attempt {ctx.status.attempt}"
        log = f"; its log: kubectl torchrun logs {ctx.meta.name} -n {ctx.meta.namespace} {which}"
    failure = _first_failure(ctx, end.failure) if end.failure is not None else None
    if end.final or restarts >= limit:
        reason, used = n.REASON_NOT_RESTARTABLE, ""
        if end.final:
            means = f"exit code {end.exit_code} means that {_FINAL_CODES[end.exit_code or 0]}"
            used = f"; a restart does not help (maxRestarts is {limit}), because {means}"
        else:
            reason = n.REASON_RESTARTS_USED_UP if limit else n.REASON_WORKER_FAILED
            used = f"; {restarts} of {limit} restarts were used" if limit else ""
        message = f"{end.why}{used}{log}"
        attempts = _attempts(ctx, reason, message)
        return ctx.end(
            n.PHASE_FAILED, reason, message, end.exit_code, firstFailure=failure, attempts=attempts
        )
    message = f"{end.why}; restart {restarts + 1} of {limit}{log}"
    # The next attempt replaces the message, and Events are kept for an hour only.
    last = {"attempt": ctx.status.attempt, "time": stamp(ctx.now), "message": message[:MAX_MESSAGE]}
    fields = {"restarts": restarts + 1, "lastRestart": last, "firstFailure": failure}
    return _next_attempt(ctx, n.REASON_WORKER_FAILED, message, **fields)


def _first_failure(ctx: ReconcileContext, failure: Failure) -> JsonObject:
    """Return `firstFailure` of the status."""
    worker, exit = failure.worker, failure.worker.end
    fields: JsonObject = {
        "attempt": ctx.status.attempt,
        "nodeRank": worker.node_rank,
        "rank": failure.rank,
        "pod": worker.name,
        "node": worker.node or None,
        "exitCode": exit.code,
        "reason": worker.disruption or exit.reason or None,
        "meaning": meaning(exit.code, exit.reason) or None,
        "time": stamp(failure.at) if failure.at is not None else None,
        "error": failure.error or exit.start_error or None,
        "logTail": failure.tail or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _attempts(ctx: ReconcileContext, reason: str, message: str) -> list[JsonObject]:
    """Return `attempts` of the status, including the attempt that ends now. `fit_status` shortens its message."""
    number, end = ctx.status.attempt, stamp(ctx.now)
    ended = {"attempt": number, "endTime": end, "reason": reason, "message": message}
    return [*(ctx.status.raw.get("attempts") or ()), ended][-MAX_ATTEMPTS:]


def _next_attempt(ctx: ReconcileContext, reason: str, message: str, **fields: Any) -> ReconcilePlan:
    return ctx.write(
        n.PHASE_RESTARTING,
        reason,
        message,
        conditions=(Condition(n.WORKERS_READY, False, reason, message),),
        requeue_after=0.0,
        attempt=ctx.status.attempt + 1,
        attempts=_attempts(ctx, reason, message),
        **fields,
    )


def replace_attempt(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Start another attempt for a new size, or for a new workspace with restartOnSync.

    It does not count as a restart.
    """
    if not ctx.status.running:
        return None
    job, size, workspace = ctx.jobs[0], ctx.spec.size_key, ctx.spec.workspace
    sync = workspace is not None and workspace.restart_on_sync and workspace.digest != job.workspace
    if size == job.size and not sync:
        return None
    prepared = attempt.prepare_attempt(ctx, ctx.status.attempt + 1)
    if not isinstance(prepared, AttemptSpec):
        return None  # the attempt continues, and _keep_attempt reports the problem
    # The user may have set the number of nodes that the queue had chosen. Then the size stays.
    fixed = ":" not in size + job.size
    if size != job.size and not (fixed and prepared.size.nodes == max(job.job_count, job.pods)):
        message = f"the job has {_format_size(size)} now, and had {_format_size(job.size)}"
        return _next_attempt(ctx, n.REASON_RESIZED, message)
    message = f"the workspace is {ctx.workspace_digest}"
    return _next_attempt(ctx, n.REASON_SYNCED, message) if sync else None


def _format_size(key: str) -> str:
    """Format `JobSpec.size_key` for a message."""
    if ":" in key:
        return f"{key.replace(':', ' to ')} nodes"
    if not key.isdecimal():
        return "the fewest nodes that hold its GPUs"
    return f"{key} node{'' if key == '1' else 's'}"


def keep_running(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Keep the attempt of a running job."""
    return _keep_attempt(ctx) if ctx.status.running else None


def _keep_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """Resume the attempt's Jobs, create and update the objects around them, and report the workers' state."""
    prepared = attempt.prepare_attempt(ctx, ctx.status.attempt, ctx.status.raw.get("nodes"))
    objects: list[JsonObject] = []
    conditions = prepared.conditions if isinstance(prepared, PendingReason) else ()
    if isinstance(prepared, AttemptSpec):
        conditions = attempt.accepted_conditions(ctx, prepared)
        # The user may have changed the queue, so keep only the claims and the gang that the pods name.
        named = {key for job in ctx.jobs for key in _named_objects(job)}
        for manifest in attempt.supporting_objects(prepared):
            is_optional = manifest["kind"] in ("PersistentVolumeClaim", "PodGroup")
            if not is_optional or attempt.object_key(manifest) in named:
                objects.append(manifest)
    resumed, reported = resume_jobs(ctx), describe_workers(ctx)
    plan = _report_workers(ctx, conditions, resumed.message, reported.text)
    if ctx.children.succeeded_attempt is not None:
        resumed = ResumedJobs()
    placeholders, sync_pod = release_placeholders(ctx), delete_ended_sync_pod(ctx)
    others = [job for job in ctx.children.jobs if job.attempt != ctx.status.attempt]
    timed = (plan, placeholders, sync_pod, resumed, find_unplaced_worker(ctx), reported)
    return replace(
        plan,
        deletions=(*attempt.delete_jobs(others), *placeholders.deletions, *sync_pod.deletions),
        creations=attempt.missing_objects(ctx, objects),
        patches=(*_archive_patches(ctx), *relax_gang(ctx), *resumed.patches),
        requeue_after=earliest(*(part.requeue_after for part in timed)),
    )


def _named_objects(job: AttemptJob) -> list[tuple[str, str]]:
    """Return the claims and the gang that the pods of a Job name, by kind and name."""
    template = job.item["spec"]["template"]
    claims = [volume.get("persistentVolumeClaim") for volume in template["spec"].get("volumes") or ()]
    gang = annotations_of(template).get(n.ANNOTATION_POD_GROUP)
    found = [("PersistentVolumeClaim", claim["claimName"]) for claim in claims if claim]
    return [*found, *([("PodGroup", gang)] if gang else [])]


def _archive_patches(ctx: ReconcileContext) -> list[JsonObject]:
    """Return a patch for each worker whose archive annotation differs from the job's spec."""
    if ctx.spec.workspace is None or ctx.problems:
        return []
    wanted = {n.ANNOTATION_ARCHIVE: archive_annotation(ctx.spec.workspace)}
    meta = {"namespace": ctx.meta.namespace, "annotations": wanted}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": worker.name, "uid": worker.uid}}
        for worker in ctx.workers
        if annotations_of(worker.item).get(n.ANNOTATION_ARCHIVE) not in (None, *wanted.values())
        and not (worker.finished or worker.deleting)
    ]


def _report_workers(
    ctx: ReconcileContext, conditions: tuple[Condition, ...], suspended: str, why: str
) -> ReconcilePlan:
    """Return the plan with the number of ready workers. `suspended` and `why` say why others are not."""
    nodes, minimum = ctx.status.raw.get("nodes"), ctx.jobs[0].minimum
    # The spec may have changed, so use the minimum of the attempt's own Job.
    needed = minimum if minimum is not None else nodes or 1
    ready = sum(worker.ready or worker.finished for worker in ctx.workers)
    is_running = ready >= needed or ctx.status.phase == n.PHASE_RUNNING
    why = suspended or why
    message = f"{ready} of {nodes} {'worker is' if nodes == 1 else 'workers are'} ready"
    if why:
        message = f"{message}, {why}"
    fields: JsonObject = {"workers": ctx.count_workers()}
    if ctx.progress is not None:
        kept = ctx.status.raw.get("progress") if "unreadable" in ctx.progress else None
        fields["progress"] = {**(kept or {}), **ctx.progress}
    if ctx.spec.workspace is not None:
        fields["workspaceDigest"] = ctx.workspace_digest  # the sidecars of the workers follow the spec
    has_metrics = any(
        annotations_of(worker.item).get(n.ANNOTATION_SCRAPE) == "true" for worker in ctx.workers
    )
    reason = n.REASON_RUNNING if is_running else n.REASON_STARTING
    by_another = n.REASON_SUSPENDED_BY_ANOTHER if suspended else "NotRequested"
    return ctx.write(
        n.PHASE_RUNNING if is_running else n.PHASE_PROVISIONING,
        reason,
        message,
        conditions=(
            *conditions,
            Condition(n.SUSPENDED, bool(suspended), by_another, suspended),
            Condition(n.WORKERS_READY, ready >= needed, reason, message),
        ),
        requeue_after=PROGRESS_SECONDS if is_running and has_metrics else None,
        **fields,
    )


class ResumedJobs(NamedTuple):
    """Patches that resume Jobs, the seconds until more are due, and a message about Jobs that stay suspended."""

    patches: tuple[JsonObject, ...] = ()
    requeue_after: float | None = None
    message: str = ""


def resume_jobs(ctx: ReconcileContext) -> ResumedJobs:
    """Resume suspended Jobs.

    Jobs that another client has suspended are resumed after a pause, and after their workers are gone, which would
    count as lost.
    """
    suspended = [job for job in ctx.jobs if job.suspended]
    pauses = {job.name: _pause(job, ctx.now) for job in suspended}
    workers = [worker for worker in ctx.children.workers if worker.deleting]
    leaving = {job.name: [worker.name for worker in workers if worker.job == job.uid] for job in suspended}
    patches = tuple(
        resume_patch(job.item)
        for job in suspended
        if pauses[job.name] <= 0 and not (job.suspended_by and leaving[job.name])
    )
    requeue_after = earliest(*(pause for pause in pauses.values() if pause > 0))
    first = next((job for job in suspended if job.suspended_by), None)
    if first is None:
        return ResumedJobs(patches, requeue_after)
    when, pods = f"{POLL_SECONDS:.0f} s later", leaving[first.name]
    if pods and pauses[first.name] <= 0:
        when = f"when pod {pods[0]} is gone; if its node does not answer, delete the pod"
    message = f"{first.suspended_by} has suspended Job {first.name}; the controller resumes it {when}"
    return ResumedJobs(patches, requeue_after, message)


def _pause(job: AttemptJob, now: float) -> float:
    """Return the seconds until the resume.

    It is 0 if the time of the suspension comes from another clock and is too far in the future.
    """
    if not job.suspended_by or job.suspended_at is None or job.suspended_at > now + POLL_SECONDS:
        return 0.0
    return job.suspended_at + POLL_SECONDS - now
