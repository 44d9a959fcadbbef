"""Suspend a job, and resume the Jobs of an attempt. Pure.

A queueing system or an administrator may suspend a Job as well. The controller leaves such a Job alone for a while. Two
controllers that write the opposite at once would do it many times a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.attempt import delete_jobs, orphan_hint
from trainyard.operator.context import ReconcileContext, Refusal, rejected_conditions, unknown_capacity
from trainyard.operator.failures import find_end
from trainyard.operator.nodes import delete_placeholders
from trainyard.operator.observe import AttemptJob, Worker
from trainyard.operator.plan import POLL_SECONDS, ReconcilePlan, deletions_of
from trainyard.operator.status import Condition, conditions_by_type

_STOPPING: Final = "the workers are being stopped"


def resume_jobs(ctx: ReconcileContext) -> tuple[tuple[dict[str, Any], ...], float | None]:
    """Return the patches that resume suspended Jobs of the attempt, and the seconds until more may be due."""
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
    """Return who has suspended Jobs of the attempt, "" if nobody has."""
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
    """Return how long the suspension stays; 0 if its time is too far in the future, by another clock."""
    if not job.suspended_by or job.suspended_at is None or job.suspended_at > now + POLL_SECONDS:
        return 0.0
    return job.suspended_at + POLL_SECONDS - now


def _leaving_workers(ctx: ReconcileContext, job: AttemptJob) -> list[Worker]:
    """Return earlier workers that are being deleted. After a resume, they would count as lost workers."""
    return [each for each in ctx.children.workers if each.job == job.uid and each.deleting]


def _unsuspend(job: AttemptJob) -> dict[str, Any]:
    meta = job.item["metadata"]
    named = {key: meta[key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": {"suspend": False}}


def suspend(ctx: ReconcileContext) -> ReconcilePlan | None:
    """Stop the workers of a suspended job and keep its other objects. The stop does not count as a restart."""
    if not ctx.spec.suspend:
        return None
    if ctx.status.running:
        end = find_end(ctx)
        message = f"suspended after {end.why}" if end is not None else "suspended"
        conditions = (
            *_spec_problems(ctx),
            Condition(type=n.SUSPENDED, status=False, reason=n.REASON_STOPPING, message=_STOPPING),
            Condition(type=n.WORKERS_READY, status=False, reason=n.REASON_SUSPENDED),
        )
        attempt = ctx.status.attempt + 1
        return ctx.write(
            n.PHASE_SUSPENDED,
            n.REASON_SUSPENDED,
            message,
            conditions=conditions,
            requeue_after=0.0,
            attempt=attempt,
        )
    groups = [item for (kind, _), item in ctx.children.objects.items() if kind == "PodGroup"]
    deletions = (*delete_jobs(ctx.children.jobs), *deletions_of(groups), *delete_placeholders(ctx))
    orphans = [each for each in ctx.children.orphans if not each.finished]
    gone = not (ctx.children.jobs or ctx.children.workers or orphans)
    message = "the job has no workers" if gone else f"{_STOPPING}{orphan_hint(orphans)}"
    idle: tuple[Condition, ...] = (
        *_spec_problems(ctx),
        Condition(
            type=n.SUSPENDED,
            status=gone,
            reason=n.REASON_SUSPENDED if gone else n.REASON_STOPPING,
            message=message,
        ),
        Condition(type=n.WORKERS_READY, status=False, reason=n.REASON_SUSPENDED),
        *unknown_capacity(ctx.status, n.REASON_SUSPENDED),
    )
    plan = ctx.write(
        n.PHASE_SUSPENDED,
        n.REASON_SUSPENDED,
        message,
        conditions=idle,
        workers=ctx.workers(),
        capacity=None,
    )
    return replace(plan, deletions=deletions)


def _spec_problems(ctx: ReconcileContext) -> tuple[Condition, ...]:
    """Return the problems of the spec. A corrected spec is checked again when the job is resumed."""
    if ctx.problems:
        return rejected_conditions(Refusal(message=ctx.problems))[:1]
    before = conditions_by_type(ctx.status.raw.get("conditions")).get(n.ACCEPTED, {})
    unknown = Condition(
        type=n.ACCEPTED, status=None, reason=n.REASON_SUSPENDED, message="tried when it is resumed"
    )
    return (unknown,) if before.get("reason") in (n.REASON_INVALID_SPEC, n.REASON_REFUSED) else ()
