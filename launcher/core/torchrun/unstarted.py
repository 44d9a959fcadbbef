"""Workers that do not start, and what keeps them. Pure."""

from __future__ import annotations

from collections import Counter

from launcher.core.held import PATIENCE_SECONDS
from launcher.core.torchrun.look import Look
from launcher.core.torchrun.lost_workspace import unsent
from launcher.core.torchrun.record import moment


def unstarted(look: Look) -> tuple[str, float | None]:
    """What there is to say of workers that do not start; and in how many seconds there may be more to say."""
    told = [podless(look), held(look), unsent(look)]
    return ", ".join(text for text, _ in told if text), min(
        (left for _, left in told if left is not None), default=None
    )


def podless(look: Look) -> tuple[str, float | None]:
    """What there is to say of workers that have no pod; else in how many seconds there may be something.

    The Job controller makes pods at once, if a quota, a policy or a webhook lets it, and tells why not in Events of the
    batch/v1 Job. What each pod of the queue is refused for, such as a PriorityClass that is not there, a dry run has
    told.
    """
    lacking, soonest, named = 0, float("inf"), ""
    pods = Counter(each.job for each in look.seen.workers_of(look.record.attempt))
    for job in look.seen.of(look.record.attempt):
        begun = moment((job.item.get("status") or {}).get("startTime"))
        if begun is None or job.suspended or job.complete or job.ending:
            continue
        missing = job.item["spec"].get("completions", 1) - pods[job.uid]
        if missing > 0:
            lacking, soonest, named = lacking + missing, min(soonest, begun), named or job.name
    left = soonest + PATIENCE_SECONDS - look.now
    if not lacking or left > 0:
        return "", left if lacking else None
    have = "has" if lacking == 1 else "have"
    # A pod of a job that overrides anything of its queue is not one of those that were tried.
    said = "" if look.spec.overrides else look.template_refused
    told = f"TorchrunQueue {look.spec.queue} says of its pods: {said}; Events" if said else "why, Events say"
    return f"{lacking} {have} no pod; {told}: kubectl describe job {named}", None


def held(look: Look) -> tuple[str, float | None]:
    """The first worker whose pod says what keeps it from starting, and how many others are; else as `podless`."""
    waiting = [
        (each.created + PATIENCE_SECONDS - look.now, f"{each.name} {each.held}")
        for each in look.seen.workers_of(look.record.attempt)
        if each.held and not (each.ready or each.over or each.deleting) and each.created is not None
    ]
    long = [told for left, told in waiting if left <= 0]
    left = min((left for left, _ in waiting if left > 0), default=None)
    if not long:
        return "", left
    others = len(long) - 1
    more = f" ({others} more {'is' if others == 1 else 'are'} held up)" if others else ""
    return f"{min(long)}{more}", left
