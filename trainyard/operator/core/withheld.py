"""Jobs of the attempt on record that are suspended: let go at once, but for those that somebody else has suspended.

A queueing system, or an administrator, does that for a reason of its own. Two who write the opposite as soon as they
hear of each other would do it many times a second, so that the other one's word holds for a while each time.
"""

from __future__ import annotations

from typing import Any

from trainyard.operator.core.decision import UNHEARD_SECONDS
from trainyard.operator.core.look import Look
from trainyard.operator.core.observe import AttemptJob, Worker


def let_go(look: Look) -> tuple[tuple[dict[str, Any], ...], float | None]:
    """What lets Jobs go now, and in how many seconds there may be more to do."""
    starts, pauses = [], []
    for job in look.seen.of(look.record.attempt):
        if not job.suspended:
            continue
        left = _left(job, look.now)
        if left > 0:
            pauses.append(left)
        elif not (job.suspended_by and _leaving(look, job)):
            starts.append(_unsuspended(job))
    return tuple(starts), min(pauses, default=None)


def told(look: Look) -> str:
    """Who holds Jobs of the attempt, "" where nobody does."""
    held = [each for each in look.seen.of(look.record.attempt) if each.suspended and each.suspended_by]
    if not held:
        return ""
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    who, name = held[0].suspended_by, held[0].name
    when = f"{UNHEARD_SECONDS:.0f} s later"
    leaving = [each.name for job in held for each in _leaving(look, job)]
    if leaving and all(_left(each, look.now) <= 0 for each in held):
        when = f"when pod {leaving[0]} is gone; if its node does not answer, delete the pod"
    return f"{who} has suspended Job {name}{more}; it is let go again {when}"


def _left(job: AttemptJob, now: float) -> float:
    """How long its suspension is left alone: no time at all by a clock that is ahead of ours by more than that."""
    if not job.suspended_by or job.suspended_at is None or job.suspended_at > now + UNHEARD_SECONDS:
        return 0.0
    return job.suspended_at + UNHEARD_SECONDS - now


def _leaving(look: Look, job: AttemptJob) -> list[Worker]:
    """Workers of before that are on their way out: they would be taken for lost ones of the gang that comes."""
    return [each for each in look.seen.workers if each.job == job.uid and each.deleting]


def _unsuspended(job: AttemptJob) -> dict[str, Any]:
    meta = job.item["metadata"]
    named = {key: meta[key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": {"suspend": False}}
