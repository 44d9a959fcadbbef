"""Keep the attempt of a running job, end it, or replace it. Pure.

The status names the attempt, so its pods may run, and its Jobs are never created again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from launcher.errors import meaning
from launcher.manifests import stamp
from trainyard.operator import names as n
from trainyard.operator.attempt import (
    changed_services,
    delete_jobs,
    missing_objects,
    object_key,
    requested,
    supporting_objects,
)
from trainyard.operator.children import archive_annotation
from trainyard.operator.context import (
    AttemptSpec,
    ReconcileContext,
    Refusal,
    acceptance_message,
    prepare_attempt,
    rejected_conditions,
    valid_conditions,
)
from trainyard.operator.diagnostics import ended_sync_pod, is_lost, pending_reason
from trainyard.operator.failures import AttemptEnd, find_end
from trainyard.operator.gang import relax_gang
from trainyard.operator.nodes import find_unplaced_worker, release_placeholders
from trainyard.operator.plan import PROGRESS_SECONDS, ReconcilePlan
from trainyard.operator.status import Condition, truncate_message
from trainyard.operator.suspension import resume_jobs, suspension_message

# The status keeps the last attempts, because a client that follows the job may have missed several.
MAX_ATTEMPTS: Final = 8
_ATTEMPT_MESSAGE: Final = 1024
# Of these kinds, an attempt has the objects that its pods reference.
_BY_NAME: Final = ("PersistentVolumeClaim", "PodGroup")


def end_attempt(ctx: ReconcileContext) -> ReconcilePlan | None:
    """End an attempt with a failed or lost worker. The job restarts, or fails without restarts left."""
    if not ctx.status.running:
        return None
    end = find_end(ctx)
    if end is None:
        return None
    if end.settle_seconds > 0:
        plan = keep_attempt(ctx)
        return replace(plan, requeue_after=min(end.settle_seconds, plan.requeue_after or end.settle_seconds))
    if is_lost(ctx, end.failure.worker.end.before if end.failure is not None else ""):
        return _restart_for_workspace(ctx, end)
    return _restart_or_fail(ctx, end)


def _restart_or_fail(ctx: ReconcileContext, end: AttemptEnd) -> ReconcilePlan:
    """Count the restart in the status before anything else is written, so that it is counted once."""
    limit, restarts = ctx.max_restarts, ctx.status.restarts
    if end.final or restarts >= limit:
        reason = n.REASON_RESTARTS_USED_UP if limit else n.REASON_WORKER_FAILED
        used = f"; {restarts} of {limit} restarts were used" if limit else ""
        if end.final:
            reason, used = n.REASON_NOT_RESTARTABLE, ""
        message = f"{end.why}{used}{_log_command(ctx, end)}"
        fields = {**_first_failure(ctx, end), "attempts": _attempts(ctx, reason, message)}
        return ctx.end(n.PHASE_FAILED, reason, message, end.exit_code, **fields)
    message = f"{end.why}; restart {restarts + 1} of {limit}{_log_command(ctx, end)}"
    # The next attempt replaces the message, and Events are kept for an hour only.
    last = {"attempt": ctx.status.attempt, "time": stamp(ctx.now), "message": truncate_message(message)}
    return _next_attempt(
        ctx,
        n.REASON_WORKER_FAILED,
        message,
        restarts=restarts + 1,
        lastRestart=last,
        **_first_failure(ctx, end),
    )


def _log_command(ctx: ReconcileContext, end: AttemptEnd) -> str:
    """Return the command that shows the log of the first failure."""
    if end.failure is None or end.failure.worker.node_rank is None:
        return ""
    which = f"--node-rank {end.failure.worker.node_rank} --attempt {ctx.status.attempt}"
    return f"; its log: kubectl torchrun logs {ctx.meta.name} -n {ctx.meta.namespace} {which}"


def _first_failure(ctx: ReconcileContext, end: AttemptEnd) -> dict[str, Any]:
    """Return `firstFailure` of the status, None if no worker failed."""
    failure = end.failure
    if failure is None:
        return {"firstFailure": None}
    worker, exit = failure.worker, failure.worker.end
    reason = worker.disruption or exit.reason
    fields: dict[str, Any] = {
        "attempt": ctx.status.attempt,
        "nodeRank": worker.node_rank,
        "rank": failure.rank,
        "pod": worker.name,
        "node": worker.node or None,
        "exitCode": exit.code,
        "reason": reason or None,
        "meaning": meaning(exit.code, exit.reason) or None,
        "time": stamp(failure.at) if failure.at is not None else None,
        "error": failure.error or exit.said or None,
        "logTail": failure.tail or None,
    }
    return {"firstFailure": {key: value for key, value in fields.items() if value is not None}}


def _attempts(ctx: ReconcileContext, reason: str, message: str) -> list[dict[str, Any]]:
    """Return `attempts` of the status, including the attempt that ends now."""
    before = ctx.status.raw.get("attempts")
    ended = {
        "attempt": ctx.status.attempt,
        "endTime": stamp(ctx.now),
        "reason": reason,
        "message": message[:_ATTEMPT_MESSAGE],
    }
    earlier = [each for each in before if isinstance(each, dict)] if isinstance(before, list) else []
    return [*earlier, ended][-MAX_ATTEMPTS:]


def _restart_for_workspace(ctx: ReconcileContext, end: AttemptEnd) -> ReconcilePlan:
    """Start another attempt, which waits for the workspace without nodes. It does not count as a restart."""
    message = f"{end.why}; the workspace was lost with an earlier pod {n.sync_pod(ctx.meta.name)}"
    return _next_attempt(ctx, n.REASON_WORKSPACE_LOST, message, workspaceDigest=None)


def _next_attempt(ctx: ReconcileContext, reason: str, message: str, **fields: Any) -> ReconcilePlan:
    conditions = (Condition(type=n.WORKERS_READY, status=False, reason=reason, message=message),)
    return ctx.write(
        n.PHASE_RESTARTING,
        reason,
        message,
        conditions=conditions,
        requeue_after=0.0,
        attempt=ctx.status.attempt + 1,
        attempts=_attempts(ctx, reason, message),
        **fields,
    )


def replace_attempt(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Start another attempt for a new size, or a new workspace with restartOnSync. It does not count as a restart."""
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
    # The user may set the number of nodes that the queue chose before.
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
    conditions: tuple[Condition, ...] = ()
    creations: tuple[dict[str, Any], ...] = ()
    patches: tuple[dict[str, Any], ...] = ()
    if isinstance(prepared, AttemptSpec):
        # The user may have changed the queue, so keep only the claims and the gang that the pods reference.
        references = {each for job in ctx.children.of(ctx.status.attempt) for each in job.references}
        objects = [
            each
            for each in supporting_objects(prepared)
            if each["kind"] not in _BY_NAME or object_key(each) in references
        ]
        conditions = valid_conditions(prepared.settings, acceptance_message(ctx, prepared))
        creations, patches = missing_objects(ctx, objects), changed_services(ctx, objects)
    elif isinstance(prepared, Refusal):
        conditions = rejected_conditions(prepared)
    else:
        conditions = prepared.conditions
    plan = _report_workers(ctx, conditions)
    others = [each for each in ctx.children.jobs if each.attempt != ctx.status.attempt]
    resumed, resume_after = resume_jobs(ctx) if ctx.children.succeeded_attempt is None else ((), None)
    placeholders, release_after = release_placeholders(ctx)
    sync_pods, sync_pod_after = ended_sync_pod(ctx)
    waits = (
        release_after,
        sync_pod_after,
        resume_after,
        find_unplaced_worker(ctx)[1],
        pending_reason(ctx)[1],
    )
    due = [each for each in (plan.requeue_after, *waits) if each is not None]
    return replace(
        plan,
        deletions=(*delete_jobs(others), *placeholders, *sync_pods),
        creations=creations,
        patches=(*patches, *_archive_patches(ctx), *relax_gang(ctx), *resumed),
        requeue_after=min(due, default=None),
    )


def _archive_patches(ctx: ReconcileContext) -> tuple[dict[str, Any], ...]:
    """Return a patch for each worker whose annotation names another archive than the job's spec."""
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
    workers = ctx.children.workers_of(ctx.status.attempt)
    nodes = ctx.status.raw.get("nodes")
    # The spec may have changed, so use the minimum of the attempt's own Job.
    minimum = ctx.children.of(ctx.status.attempt)[0].least
    needed = minimum if minimum is not None else nodes if isinstance(nodes, int) else 1
    ready = sum(each.ready or each.finished for each in workers)
    is_running = ready >= needed or ctx.status.phase == n.PHASE_RUNNING
    suspended = suspension_message(ctx)
    why = suspended or pending_reason(ctx)[0]
    message = f"{ready} of {nodes} workers are ready" + (f", {why}" if why else "")
    fields: dict[str, Any] = {"workers": ctx.workers()}
    if ctx.progress is not None:
        before = ctx.status.raw.get("progress")
        kept = before if "unreadable" in ctx.progress and isinstance(before, dict) else {}
        fields["progress"] = {**kept, **ctx.progress}
    if ctx.spec.workspace is not None:
        fields["workspaceDigest"] = ctx.spec.workspace.digest  # the sidecars of the workers follow the spec
    reason = n.REASON_RUNNING if is_running else n.REASON_STARTING
    return ctx.write(
        n.PHASE_RUNNING if is_running else n.PHASE_PROVISIONING,
        reason,
        message,
        conditions=(
            *conditions,
            Condition(
                type=n.SUSPENDED,
                status=bool(suspended),
                reason=n.REASON_SUSPENDED_BY_ANOTHER if suspended else "NotAsked",
                message=suspended,
            ),
            Condition(type=n.WORKERS_READY, status=ready >= needed, reason=reason, message=message),
        ),
        requeue_after=PROGRESS_SECONDS if is_running and any(each.has_metrics for each in workers) else None,
        **fields,
    )
