"""End a job and clean up after it: invalid spec, success, deadline, time to live. Pure."""

from __future__ import annotations

from dataclasses import replace

from trainyard.operator import names as n
from trainyard.operator.context import ReconcileContext
from trainyard.operator.plan import Deletion, ReconcilePlan, deletion, deletions_of
from trainyard.operator.running import keep_attempt


def clean_up_finished(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Delete what a finished job no longer needs, and the job itself after its time to live.

    Its finished Jobs stay, because their pods have the logs.
    """
    if not ctx.status.final:
        return None
    raw, plan, deletions = ctx.status.raw, ReconcilePlan(), _leftovers(ctx)
    if raw.get("observedGeneration") != ctx.meta.generation:
        plan = ctx.write(ctx.status.phase, raw.get("reason") or "", raw.get("message") or "")
    settings = ctx.settings
    seconds = settings.time_to_live if settings is not None else ctx.spec.ttl_seconds_after_finished
    if seconds is None or ctx.status.completed is None or not ctx.is_spec_readable:
        return replace(plan, deletions=deletions)
    left = ctx.status.completed + seconds - ctx.now
    if left > 0:
        return replace(plan, deletions=deletions, requeue_after=left)
    # Delete it only if it has not changed: a user may have extended its time to live.
    return ReconcilePlan(deletions=(*deletions, deletion(ctx.job, as_read=True)))


def _leftovers(ctx: ReconcileContext) -> tuple[Deletion, ...]:
    # The Job controller is about to fail a Job with a failed pod, but not the Jobs of the other nodes.
    failing = {each.job for each in ctx.children.workers if each.failed}
    jobs = [
        each
        for each in ctx.children.jobs
        if each.uid not in ctx.children.succeeded_jobs
        and not (each.attempt == ctx.status.attempt and (each.failed or each.uid in failing))
        and not each.deleting
    ]
    others = [item for (kind, _), item in ctx.children.objects.items() if kind in ("PodGroup", "Pod")]
    return (*(deletion(each.item, foreground=True) for each in jobs), *deletions_of(others))


def reject_invalid_spec(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Fail a job with an invalid spec, unless its workers have started."""
    if not ctx.problems or ctx.has_started:
        return None
    return ctx.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, ctx.problems, None)


def finish_succeeded(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Finish a job with enough succeeded workers, even if its attempt would be stopped.

    A Job reports its success after its other pods are gone. The controller waits for the report, unless something else
    ends the attempt.
    """
    attempt = ctx.children.succeeded_attempt
    if attempt is None:
        return None
    stops = (
        ctx.spec.suspend or ctx.is_past_deadline or any(each.deleting for each in ctx.children.of(attempt))
    )
    runs = ctx.status.running and attempt == ctx.status.attempt
    if runs and not stops and not ctx.children.complete(attempt):
        return keep_attempt(ctx)
    return ctx.end(n.PHASE_SUCCEEDED, n.REASON_SUCCEEDED, "all workers ended well", 0)


def fail_past_deadline(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Fail a job that has run longer than activeDeadlineSeconds."""
    if not ctx.is_past_deadline:
        return None
    message = f"activeDeadlineSeconds, {ctx.deadline_seconds} s since the first start, are over"
    return ctx.end(n.PHASE_FAILED, n.REASON_DEADLINE_EXCEEDED, message, None)
