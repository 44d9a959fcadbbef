"""Run the attempt of a job: keep it, suspend and resume it, end it, or replace it. Pure.

The status names the attempt, so its pods may run, and its Jobs are never created again. `_restart_or_fail` counts
restarts.

A queueing system or an administrator may also suspend a Job. The controller resumes such a Job only after a pause,
because otherwise both would overwrite each other in a loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from launcher.errors import meaning
from launcher.manifests import stamp
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.attempt import (
    accepted_conditions,
    changed_services,
    delete_jobs,
    missing_objects,
    object_key,
    orphan_hint,
    prepare_attempt,
    requested,
    supporting_objects,
    unknown_capacity,
)
from trainyard.operator.children import archive_annotation
from trainyard.operator.context import AttemptSpec, ReconcileContext, earliest
from trainyard.operator.diagnostics import ended_sync_pod, is_lost, pending_reason
from trainyard.operator.failures import AttemptEnd, find_end
from trainyard.operator.gang import relax_gang
from trainyard.operator.nodes import delete_placeholders, find_unplaced_worker, release_placeholders
from trainyard.operator.observe import AttemptJob, Worker
from trainyard.operator.plan import POLL_SECONDS, PROGRESS_SECONDS, ReconcilePlan, deletions_of, unsuspended
from trainyard.operator.status import Condition, truncate_message

# The status keeps the last attempts, because a client that follows the job may have missed several.
MAX_ATTEMPTS: Final = 8
_ATTEMPT_MESSAGE: Final = 1024
# An attempt keeps only the claims and the PodGroup that its pods reference.
_BY_NAME: Final = ("PersistentVolumeClaim", "PodGroup")
_STOPPING: Final = "the workers are being stopped"


def suspend(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Stop the workers of a suspended job and keep its other objects. The stop does not count as a restart."""
    if not ctx.spec.suspend:
        return None
    reason, no_workers = n.REASON_SUSPENDED, Condition(n.WORKERS_READY, False, n.REASON_SUSPENDED)
    if ctx.status.running:
        end = find_end(ctx)
        stopping = Condition(n.SUSPENDED, False, n.REASON_STOPPING, _STOPPING)
        return ctx.write(
            n.PHASE_SUSPENDED,
            reason,
            f"suspended after {end.why}" if end is not None else "suspended",
            conditions=(*_spec_problems(ctx), stopping, no_workers),
            requeue_after=0.0,
            attempt=ctx.status.attempt + 1,
        )
    groups = [item for (kind, _), item in ctx.children.objects.items() if kind == "PodGroup"]
    orphans = [each for each in ctx.children.orphans if not each.finished]
    gone = not (ctx.children.jobs or ctx.children.workers or orphans)
    message = "the job has no workers" if gone else f"{_STOPPING}{orphan_hint(orphans)}"
    stopped = Condition(n.SUSPENDED, gone, reason if gone else n.REASON_STOPPING, message)
    plan = ctx.write(
        n.PHASE_SUSPENDED,
        reason,
        message,
        conditions=(*_spec_problems(ctx), stopped, no_workers, *unknown_capacity(ctx, reason)),
        workers=ctx.count_workers(),
        capacity=None,
    )
    deletions = (*delete_jobs(ctx.children.jobs), *deletions_of(groups), *delete_placeholders(ctx))
    return replace(plan, deletions=deletions)


def _spec_problems(ctx: ReconcileContext) -> tuple[Condition, ...]:
    """Return the condition Accepted for an invalid spec. A corrected spec is checked again at the resume."""
    if ctx.problems:
        return (Condition(n.ACCEPTED, False, n.REASON_INVALID_SPEC, ctx.problems),)
    before = ctx.status.conditions.get(n.ACCEPTED, {}).get("reason")
    if before not in (n.REASON_INVALID_SPEC, n.REASON_REFUSED):
        return ()
    return (Condition(n.ACCEPTED, None, n.REASON_SUSPENDED, "tried when it is resumed"),)


def end_attempt(ctx: ReconcileContext) -> ReconcilePlan | None:
    """End an attempt with a failed or lost worker. The job restarts, or fails without restarts left."""
    if not ctx.status.running:
        return None
    end = find_end(ctx)
    if end is None:
        return None
    if end.settle_seconds > 0:
        plan = keep_attempt(ctx)
        return replace(plan, requeue_after=earliest(end.settle_seconds, plan.requeue_after or None))
    if is_lost(ctx, end.failure.worker.end.before if end.failure is not None else ""):
        return _restart_for_workspace(ctx, end)
    return _restart_or_fail(ctx, end)


def _restart_or_fail(ctx: ReconcileContext, end: AttemptEnd) -> ReconcilePlan:
    """Restart or fail the job. The status counts the restart before any other write, so it is counted once."""
    limit, restarts, failure = ctx.max_restarts, ctx.status.restarts, _first_failure(ctx, end)
    if end.final or restarts >= limit:
        reason, used = n.REASON_NOT_RESTARTABLE, ""
        if not end.final:
            reason = n.REASON_RESTARTS_USED_UP if limit else n.REASON_WORKER_FAILED
            used = f"; {restarts} of {limit} restarts were used" if limit else ""
        message = f"{end.why}{used}{_log_command(ctx, end)}"
        attempts = _attempts(ctx, reason, message)
        return ctx.end(
            n.PHASE_FAILED, reason, message, end.exit_code, firstFailure=failure, attempts=attempts
        )
    message = f"{end.why}; restart {restarts + 1} of {limit}{_log_command(ctx, end)}"
    # The next attempt replaces the message, and Events are kept for an hour only.
    last = {"attempt": ctx.status.attempt, "time": stamp(ctx.now), "message": truncate_message(message)}
    fields = {"restarts": restarts + 1, "lastRestart": last, "firstFailure": failure}
    return _next_attempt(ctx, n.REASON_WORKER_FAILED, message, **fields)


def _log_command(ctx: ReconcileContext, end: AttemptEnd) -> str:
    """Return the command that shows the log of the first failure."""
    if end.failure is None or end.failure.worker.node_rank is None:
        return ""
    which = f"--node-rank {end.failure.worker.node_rank} --attempt {ctx.status.attempt}"
    return f"; its log: kubectl torchrun logs {ctx.meta.name} -n {ctx.meta.namespace} {which}"


def _first_failure(ctx: ReconcileContext, end: AttemptEnd) -> JsonObject | None:
    """Return `firstFailure` of the status; None if no worker failed."""
    failure = end.failure
    if failure is None:
        return None
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
        "error": failure.error or exit.said or None,
        "logTail": failure.tail or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _attempts(ctx: ReconcileContext, reason: str, message: str) -> list[JsonObject]:
    """Return `attempts` of the status, including the attempt that ends now."""
    ended = {
        "attempt": ctx.status.attempt,
        "endTime": stamp(ctx.now),
        "reason": reason,
        "message": message[:_ATTEMPT_MESSAGE],
    }
    return [*(ctx.status.raw.get("attempts") or ()), ended][-MAX_ATTEMPTS:]


def _restart_for_workspace(ctx: ReconcileContext, end: AttemptEnd) -> ReconcilePlan:
    """Start another attempt. It waits for the workspace without nodes, and does not count as a restart."""
    message = f"{end.why}; the workspace was lost with an earlier pod {n.sync_pod(ctx.meta.name)}"
    return _next_attempt(ctx, n.REASON_WORKSPACE_LOST, message, workspaceDigest=None)


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
    job = ctx.children.of(ctx.status.attempt)[0]
    size, digest = requested(ctx)
    sync = ctx.spec.workspace is not None and ctx.spec.workspace.restart_on_sync and digest != job.workspace
    if size == job.size and not sync:
        return None
    prepared = prepare_attempt(ctx, ctx.status.attempt + 1)
    if not isinstance(prepared, AttemptSpec):
        return None  # the attempt continues, and keep_attempt reports the problem
    # The user may have set the number of nodes that the queue had chosen. Then the size stays.
    fixed = ":" not in size + job.size
    if size != job.size and not (fixed and prepared.size.nodes == max(job.job_count, job.pods)):
        message = f"the job has {_format_size(size)} now, and had {_format_size(job.size)}"
        return _next_attempt(ctx, n.REASON_RESIZED, message)
    return _next_attempt(ctx, n.REASON_SYNCED, f"the workspace is {digest}") if sync else None


def _format_size(key: str) -> str:
    """Format `JobSpec.size_key` for a message."""
    if ":" in key:
        return f"{key.replace(':', ' to ')} nodes"
    if not key.isdecimal():
        return "the fewest nodes that hold its GPUs"
    return f"{key} node{'' if key == '1' else 's'}"


def keep_running(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Keep the attempt of a running job."""
    return keep_attempt(ctx) if ctx.status.running else None


def keep_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """Resume the attempt's Jobs, create and update the objects around them, and report the workers' state."""
    prepared = prepare_attempt(ctx, ctx.status.attempt, ctx.status.raw.get("nodes"))
    objects: list[JsonObject] = []
    if isinstance(prepared, AttemptSpec):
        # The user may have changed the queue, so keep only the claims and the gang that the pods reference.
        references = {each for job in ctx.children.of(ctx.status.attempt) for each in job.references}
        objects = [
            each
            for each in supporting_objects(prepared)
            if each["kind"] not in _BY_NAME or object_key(each) in references
        ]
        conditions = accepted_conditions(ctx, prepared)
    else:
        conditions = prepared.conditions
    plan = _report_workers(ctx, conditions)
    others = [each for each in ctx.children.jobs if each.attempt != ctx.status.attempt]
    resumed, resume_after = resume_jobs(ctx) if ctx.children.succeeded_attempt is None else ((), None)
    placeholders, release_after = release_placeholders(ctx)
    sync_pods, sync_pod_after = ended_sync_pod(ctx)
    return replace(
        plan,
        deletions=(*delete_jobs(others), *placeholders, *sync_pods),
        creations=missing_objects(ctx, objects),
        patches=(*changed_services(ctx, objects), *_archive_patches(ctx), *relax_gang(ctx), *resumed),
        requeue_after=earliest(
            plan.requeue_after,
            release_after,
            sync_pod_after,
            resume_after,
            find_unplaced_worker(ctx)[1],
            pending_reason(ctx)[1],
        ),
    )


def _archive_patches(ctx: ReconcileContext) -> tuple[JsonObject, ...]:
    """Return a patch for each worker whose archive annotation differs from the job's spec."""
    if ctx.spec.workspace is None or ctx.problems:
        return ()
    named = archive_annotation(ctx.spec.workspace)
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": each.name,
                "namespace": ctx.meta.namespace,
                "uid": each.uid,
                "annotations": {n.ANNOTATION_ARCHIVE: named},
            },
        }
        for each in ctx.children.workers_of(ctx.status.attempt)
        if each.archive not in (None, named) and not (each.finished or each.deleting)
    )


def _report_workers(ctx: ReconcileContext, conditions: tuple[Condition, ...]) -> ReconcilePlan:
    workers, nodes = ctx.children.workers_of(ctx.status.attempt), ctx.status.raw.get("nodes")
    # The spec may have changed, so use the minimum of the attempt's own Job.
    minimum = ctx.children.of(ctx.status.attempt)[0].least
    needed = minimum if minimum is not None else nodes or 1
    ready = sum(each.ready or each.finished for each in workers)
    is_running = ready >= needed or ctx.status.phase == n.PHASE_RUNNING
    suspended = suspension_message(ctx)
    why = suspended or pending_reason(ctx)[0]
    message = f"{ready} of {nodes} workers are ready" + (f", {why}" if why else "")
    fields: JsonObject = {"workers": ctx.count_workers()}
    if ctx.progress is not None:
        kept = ctx.status.raw.get("progress") if "unreadable" in ctx.progress else None
        fields["progress"] = {**(kept or {}), **ctx.progress}
    if ctx.spec.workspace is not None:
        fields["workspaceDigest"] = ctx.spec.workspace.digest  # the sidecars of the workers follow the spec
    reason = n.REASON_RUNNING if is_running else n.REASON_STARTING
    by_another = n.REASON_SUSPENDED_BY_ANOTHER if suspended else "NotAsked"
    return ctx.write(
        n.PHASE_RUNNING if is_running else n.PHASE_PROVISIONING,
        reason,
        message,
        conditions=(
            *conditions,
            Condition(n.SUSPENDED, bool(suspended), by_another, suspended),
            Condition(n.WORKERS_READY, ready >= needed, reason, message),
        ),
        requeue_after=PROGRESS_SECONDS if is_running and any(each.has_metrics for each in workers) else None,
        **fields,
    )


def resume_jobs(ctx: ReconcileContext) -> tuple[tuple[JsonObject, ...], float | None]:
    """Return the patches that resume suspended Jobs of the attempt, and the seconds until more may be due."""
    starts, pauses = [], []
    for job in ctx.children.of(ctx.status.attempt):
        if not job.suspended:
            continue
        left = _seconds_to_resume(job, ctx.now)
        if left > 0:
            pauses.append(left)
        elif not (job.suspended_by and _leaving_workers(ctx, job)):
            starts.append(unsuspended(job.item))
    return tuple(starts), min(pauses, default=None)


def suspension_message(ctx: ReconcileContext) -> str:
    """Return the message about Jobs of the attempt that another client has suspended; "" for none."""
    held = [each for each in ctx.children.of(ctx.status.attempt) if each.suspended and each.suspended_by]
    if not held:
        return ""
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    who, name = held[0].suspended_by, held[0].name
    when = f"{POLL_SECONDS:.0f} s later"
    leaving = [each.name for job in held for each in _leaving_workers(ctx, job)]
    if leaving and all(_seconds_to_resume(each, ctx.now) <= 0 for each in held):
        when = f"when pod {leaving[0]} is gone; if its node does not answer, delete the pod"
    return f"{who} has suspended Job {name}{more}; the controller resumes it {when}"


def _seconds_to_resume(job: AttemptJob, now: float) -> float:
    """Return the seconds until the resume.

    It is 0 if the time of the suspension comes from another clock and is too far in the future.
    """
    if not job.suspended_by or job.suspended_at is None or job.suspended_at > now + POLL_SECONDS:
        return 0.0
    return job.suspended_at + POLL_SECONDS - now


def _leaving_workers(ctx: ReconcileContext, job: AttemptJob) -> list[Worker]:
    """Return earlier workers that are being deleted. Do not resume before they are gone: they would count as lost."""
    return [each for each in ctx.children.workers if each.job == job.uid and each.deleting]
