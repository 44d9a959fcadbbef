"""A job whose attempt is on record: its pods may run, and its Jobs are never made again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from launcher.errors import meaning
from launcher.manifests import stamp
from trainyard.k8s import names
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
from trainyard.operator.first_failure import Failure, find_first_failure, settle_seconds
from trainyard.operator.nodes import find_unplaced_worker, release_placeholders
from trainyard.operator.observe import AttemptJob, PodExit, Worker
from trainyard.operator.plan import POLL_SECONDS, ReconcilePlan
from trainyard.operator.pool import NODE_START_SECONDS
from trainyard.operator.status import Condition, truncate_message

PROGRESS_SECONDS: Final = 10.0
# The status keeps the last attempts, because a client that follows the job may have missed several.
MAX_ATTEMPTS: Final = 8
_ATTEMPT_MESSAGE: Final = 1024
# Kinds of which an attempt has those that its pods name.
_BY_NAME: Final = ("PersistentVolumeClaim", "PodGroup")


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """Why an attempt is over, and the exit code of the worker that ended it, if one did.

    `final`: its exit code says that the command fails each time. `failure` is the failure of this worker, and
    `settle_seconds` the time until no earlier failure can be reported any more.
    """

    why: str
    exit_code: int | None = None
    final: bool = False
    failure: Failure | None = None
    settle_seconds: float = 0.0


def continue_attempt(ctx: ReconcileContext) -> ReconcilePlan:
    """The next step of an attempt that runs, or ends."""
    over = find_end(ctx)
    if over is not None and over.settle_seconds > 0:
        decision = keep_running(ctx)
        return replace(
            decision, requeue_after=min(over.settle_seconds, decision.requeue_after or over.settle_seconds)
        )
    if over is not None:
        before = over.failure.worker.end.before if over.failure is not None else ""
        return _end_attempt(ctx, over) if not is_lost(ctx, before) else _restart_for_workspace(ctx, over)
    anew = _replace_attempt(ctx)
    if anew is not None:
        return anew
    return keep_running(ctx)


def find_end(ctx: ReconcileContext) -> AttemptEnd | None:
    """Why the attempt is over, None while it is not: one lost worker is all of them."""
    attempt = ctx.status.attempt
    jobs, workers = ctx.children.of(attempt), ctx.children.workers_of(attempt)
    if not jobs:
        return AttemptEnd(why=f"Job {n.attempt_name(ctx.meta.name, attempt)} is gone")
    # The workers of a Job that somebody suspends are ended by that, and made anew when it is let go.
    stopped = {each.uid for each in jobs if each.suspended}
    kept = [each for each in workers if not (each.deleting and each.job in stopped)]
    failure = find_first_failure(kept)
    well = any(each.uid in ctx.children.succeeded_jobs for each in jobs)
    lost = [each for each in kept if each.deleting and (each.deleted_gracefully or not each.finished)]
    # The Job controller removes the others then, too.
    lost.sort(key=lambda each: not each.disruption)
    if failure is not None and failure.is_consequence and lost and lost[0].disruption:
        return AttemptEnd(why=_describe_loss(lost[0]), exit_code=lost[0].end.code)
    if failure is not None:
        worker = failure.worker
        # The exit code of an init container says nothing about the command.
        final = not worker.end.before and worker.end.code in names.WORKER_FINAL_EXIT_CODES
        settles = settle_seconds(failure, kept, ctx.now)
        return AttemptEnd(
            why=_describe_failure(failure),
            exit_code=worker.end.code,
            final=final,
            failure=failure,
            settle_seconds=settles,
        )
    for job in jobs:
        if job.failed:
            named = f": {_describe_loss(lost[0])}" if lost and lost[0].disruption else ""
            return AttemptEnd(why=f"Job {job.name} failed{named}")
        if job.deleting:
            return AttemptEnd(why=f"Job {job.name} was deleted")
    if len(jobs) < jobs[0].job_count:
        return AttemptEnd(why=f"{jobs[0].job_count - len(jobs)} Jobs of the attempt are gone")
    if lost and not well:
        return AttemptEnd(why=_describe_loss(lost[0]))
    name, _ = find_unplaced_worker(ctx)
    if name and not well:
        return AttemptEnd(why=f"worker {name} has no node after {NODE_START_SECONDS} s")
    return None


def _describe_loss(worker: Worker) -> str:
    return f"{_describe_worker(worker)} is lost{_taken_reason(worker)}"


def _describe_worker(worker: Worker, rank: int | None = None) -> str:
    ranks = [("node rank", worker.node_rank), ("rank", rank)]
    which = ", ".join(f"{name} {number}" for name, number in ranks if number is not None)
    return f"worker {worker.name}{f' ({which})' if which else ''} on node {worker.node or 'unknown'}"


def _taken_reason(worker: Worker) -> str:
    return f" ({worker.disruption})" if worker.disruption not in ("", worker.end.reason) else ""


def _describe_failure(failure: Failure) -> str:
    worker = failure.worker
    said = f": {worker.end.of_pod}" if worker.end.of_pod else ""
    known = worker.end.before or worker.end.said
    error = f": {failure.described}" if failure.described and not known else ""
    return f"{_describe_worker(worker, failure.rank)} {_describe_end(worker.end)}{_taken_reason(worker)}{said}{error}"


def _describe_end(end: PodExit) -> str:
    said = f"ended with exit code {end.code}" if end.code is not None else "failed"
    if end.before:
        return f"did not begin: its init container {end.before} {said} ({end.said or end.reason or 'no message'})"
    if end.said:
        return f"did not start: {end.said} ({end.reason}, exit code {end.code})"
    means = meaning(end.code, end.reason) or end.reason
    return f"{said} ({means})" if means else said


def _end_attempt(ctx: ReconcileContext, over: AttemptEnd) -> ReconcilePlan:
    """Status first: what is known of the end is kept, and it is counted once, whatever happens next."""
    most, restarts = ctx.max_restarts, ctx.status.restarts
    final = over.final
    if final or restarts >= most:
        reason = (
            n.REASON_NOT_RESTARTABLE
            if final
            else n.REASON_RESTARTS_USED_UP
            if most
            else n.REASON_WORKER_FAILED
        )
        used = f"; {restarts} of {most} restarts were used" if most and not final else ""
        message = f"{over.why}{used}{_log_command(ctx, over)}"
        fields = {**_first_failure(ctx, over), "attempts": _attempts(ctx, reason, message)}
        return ctx.end(n.PHASE_FAILED, reason, message, over.exit_code, **fields)
    message = f"{over.why}; restart {restarts + 1} of {most}{_log_command(ctx, over)}"
    # The message is another one as soon as the next attempt begins, and Events are kept for an hour.
    why = {
        "attempt": ctx.status.attempt,
        "time": stamp(ctx.now),
        "message": truncate_message(message),
    }
    return _next_attempt(
        ctx,
        n.REASON_WORKER_FAILED,
        message,
        restarts=restarts + 1,
        lastRestart=why,
        **_first_failure(ctx, over),
    )


def _log_command(ctx: ReconcileContext, over: AttemptEnd) -> str:
    """Return the command that shows the log of the first failure."""
    if over.failure is None or over.failure.worker.node_rank is None:
        return ""
    which = f"--node-rank {over.failure.worker.node_rank} --attempt {ctx.status.attempt}"
    return f"; its log: kubectl torchrun logs {ctx.meta.name} -n {ctx.meta.namespace} {which}"


def _first_failure(ctx: ReconcileContext, over: AttemptEnd) -> dict[str, Any]:
    """Return `firstFailure` of the status, None if no worker failed."""
    failure = over.failure
    if failure is None:
        return {"firstFailure": None}
    worker, end = failure.worker, failure.worker.end
    reason = worker.disruption or end.reason
    fields: dict[str, Any] = {
        "attempt": ctx.status.attempt,
        "nodeRank": worker.node_rank,
        "rank": failure.rank,
        "pod": worker.name,
        "node": worker.node or None,
        "exitCode": end.code,
        "reason": reason or None,
        "meaning": meaning(end.code, end.reason) or None,
        "time": stamp(failure.at) if failure.at is not None else None,
        "error": failure.error or end.said or None,
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


def _restart_for_workspace(ctx: ReconcileContext, over: AttemptEnd) -> ReconcilePlan:
    """Begin another attempt, which first waits for the workspace without nodes. It is not counted as a restart."""
    message = f"{over.why}; the workspace was lost with an earlier pod {n.sync_pod(ctx.meta.name)}"
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


def _replace_attempt(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Another attempt, which costs no restart: of another size, or with another workspace where that is asked for."""
    job = ctx.children.of(ctx.status.attempt)[0]
    size, workspace = requested(ctx)
    sync = (
        ctx.spec.workspace is not None and ctx.spec.workspace.restart_on_sync and workspace != job.workspace
    )
    if size == job.size and not sync:
        return None
    prepared = prepare_attempt(ctx, ctx.status.attempt + 1)
    if not isinstance(prepared, AttemptSpec):
        return None  # what runs goes on; `keep` says what is wrong
    # The same nodes may be said, or be left to the queue.
    fixed = ":" not in size + job.size
    if size != job.size and not (fixed and prepared.size.nodes == max(job.job_count, job.pods)):
        return _next_attempt(
            ctx,
            n.REASON_RESIZED,
            f"the job has {_format_size(size)} now, and had {_format_size(job.size)}",
        )
    return _next_attempt(ctx, n.REASON_SYNCED, f"the workspace is {workspace}") if sync else None


def _format_size(key: str) -> str:
    """What `JobSpec.size_key` says, for people."""
    if ":" in key:
        return f"{key.replace(':', ' to ')} nodes"
    return (
        "the fewest nodes that hold its GPUs"
        if not key.isdecimal()
        else f"{key} node{'' if key == '1' else 's'}"
    )


def keep_running(ctx: ReconcileContext) -> ReconcilePlan:
    """What runs goes on, with all that it needs around it."""
    prepared = prepare_attempt(ctx, ctx.status.attempt, ctx.status.raw.get("nodes"))
    conditions: tuple[Condition, ...] = ()
    creations: tuple[dict[str, Any], ...] = ()
    patches: tuple[dict[str, Any], ...] = ()
    if isinstance(prepared, AttemptSpec):
        # The queue may be another one than that of which the attempt was made.
        named = frozenset[tuple[str, str]]().union(
            *(each.references for each in ctx.children.of(ctx.status.attempt))
        )
        around = [
            each
            for each in supporting_objects(prepared)
            if each["kind"] not in _BY_NAME or object_key(each) in named
        ]
        conditions = valid_conditions(prepared.settings, acceptance_message(ctx, prepared))
        creations, patches = missing_objects(ctx, around), changed_services(ctx, around)
    elif isinstance(prepared, Refusal):
        conditions = rejected_conditions(prepared)
    else:
        conditions = prepared.conditions
    decision = _write_running(ctx, conditions)
    others = [each for each in ctx.children.jobs if each.attempt != ctx.status.attempt]
    starts, held = resume_jobs(ctx) if ctx.children.succeeded_attempt is None else ((), None)
    gone, left = release_placeholders(ctx)
    empty, pause = ended_sync_pod(ctx)
    pauses = (
        decision.requeue_after,
        left,
        pause,
        held,
        find_unplaced_worker(ctx)[1],
        pending_reason(ctx)[1],
    )
    due = [each for each in pauses if each is not None]
    return replace(
        decision,
        deletions=(*delete_jobs(others), *gone, *empty),
        creations=creations,
        patches=(*patches, *_archive_changes(ctx), *_gang_changes(ctx), *starts),
        requeue_after=min(due, default=None),
    )


def _archive_changes(ctx: ReconcileContext) -> tuple[dict[str, Any], ...]:
    """Return a change for each worker whose annotation names another archive than the job's spec."""
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


def _gang_changes(ctx: ReconcileContext) -> tuple[dict[str, Any], ...]:
    """Return the gang with a minimum of one member, once a worker has succeeded.

    KAI Scheduler 0.16.2 to 0.17.0 counts such a worker as missing, and evicts the others 60 s later
    (kai-scheduler/KAI-Scheduler#1968). 0.17.0 does not where `children.pod_group` says so; the 0.16 releases have no
    such field, and evict only a gang that is below its minimum (IsStale in
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


def _write_running(ctx: ReconcileContext, conditions: tuple[Condition, ...]) -> ReconcilePlan:
    workers = ctx.children.workers_of(ctx.status.attempt)
    nodes = ctx.status.raw.get("nodes")
    # What it was made with: an edit since may say anything.
    least = ctx.children.of(ctx.status.attempt)[0].least
    needed = least if least is not None else nodes if isinstance(nodes, int) else 1
    ready = sum(each.ready or each.finished for each in workers)
    all_ready = ready >= needed
    runs = all_ready or ctx.status.phase == n.PHASE_RUNNING
    held = suspension_message(ctx)
    why = held or pending_reason(ctx)[0]
    message = f"{ready} of {nodes} workers are ready" + (f", {why}" if why else "")
    fields: dict[str, Any] = {"workers": ctx.workers()}
    if ctx.progress is not None:
        before = ctx.status.raw.get("progress")
        kept = before if "unreadable" in ctx.progress and isinstance(before, dict) else {}
        fields["progress"] = {**kept, **ctx.progress}
    if ctx.spec.workspace is not None:
        fields["workspaceDigest"] = ctx.spec.workspace.digest  # the workers follow the spec
    reason = n.REASON_RUNNING if runs else n.REASON_STARTING
    ready_now = Condition(type=n.WORKERS_READY, status=all_ready, reason=reason, message=message)
    alive = Condition(
        type=n.SUSPENDED,
        status=bool(held),
        reason=n.REASON_SUSPENDED_BY_ANOTHER if held else "NotAsked",
        message=held,
    )
    due = [] if ctx.deadline is None else [ctx.deadline - ctx.now]
    if runs and any(each.has_metrics for each in workers):
        due.append(PROGRESS_SECONDS)
    phase = n.PHASE_RUNNING if runs else n.PHASE_PROVISIONING
    return ctx.write(
        phase,
        reason,
        message,
        conditions=(*conditions, alive, ready_now),
        requeue_after=min(due, default=None),
        **fields,
    )


def resume_jobs(ctx: ReconcileContext) -> tuple[tuple[dict[str, Any], ...], float | None]:
    """What lets Jobs go now, and in how many seconds there may be more to do."""
    starts, pauses = [], []
    for job in ctx.children.of(ctx.status.attempt):
        if not job.suspended:
            continue
        left = _seconds_to_resume(job, ctx.now)
        if left > 0:
            pauses.append(left)
        elif not (job.suspended_by and _leaving_workers(ctx, job)):
            starts.append(_unsuspend(job))
    return tuple(starts), min(pauses, default=None)


def suspension_message(ctx: ReconcileContext) -> str:
    """Who holds Jobs of the attempt, "" where nobody does."""
    held = [each for each in ctx.children.of(ctx.status.attempt) if each.suspended and each.suspended_by]
    if not held:
        return ""
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    who, name = held[0].suspended_by, held[0].name
    when = f"{POLL_SECONDS:.0f} s later"
    leaving = [each.name for job in held for each in _leaving_workers(ctx, job)]
    if leaving and all(_seconds_to_resume(each, ctx.now) <= 0 for each in held):
        when = f"when pod {leaving[0]} is gone; if its node does not answer, delete the pod"
    return f"{who} has suspended Job {name}{more}; it is let go again {when}"


def _seconds_to_resume(job: AttemptJob, now: float) -> float:
    """How long its suspension is left alone: no time at all by a clock that is ahead of ours by more than that."""
    if not job.suspended_by or job.suspended_at is None or job.suspended_at > now + POLL_SECONDS:
        return 0.0
    return job.suspended_at + POLL_SECONDS - now


def _leaving_workers(ctx: ReconcileContext, job: AttemptJob) -> list[Worker]:
    """Workers of before that are on their way out: they would be taken for lost ones of the gang that comes."""
    return [each for each in ctx.children.workers if each.job == job.uid and each.deleting]


def _unsuspend(job: AttemptJob) -> dict[str, Any]:
    meta = job.item["metadata"]
    named = {key: meta[key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": {"suspend": False}}
