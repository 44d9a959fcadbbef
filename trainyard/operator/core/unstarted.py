"""Workers that do not start, and what keeps them. Pure."""

from __future__ import annotations

from collections import Counter

from launcher.held import PATIENCE_SECONDS
from trainyard.operator.core.look import Look
from trainyard.operator.core.lost_workspace import unsent
from trainyard.operator.core.outlived import outlived
from trainyard.operator.core.record import moment


def unstarted(look: Look) -> tuple[str, float | None]:
    """What there is to say of workers that do not start or do not end; and in how many seconds there may be more."""
    told = [podless(look), held(look), unsent(look), outlived(look)]
    return ", ".join(text for text, _ in told if text), min(
        (left for _, left in told if left is not None), default=None
    )


def podless(look: Look) -> tuple[str, float | None]:
    """What there is to say of workers that have no pod; else in how many seconds there may be something.

    The Job controller makes pods at once, if a quota, a policy or a webhook lets it, and tells why not in Events of the
    batch/v1 Job. What each pod of the queue is refused for, such as a PriorityClass that is not there, a dry run has
    told.
    """
    short = lacking(look)
    if not short:
        return "", None
    left = min(begun for begun, _, _ in short) + PATIENCE_SECONDS - look.now
    if left > 0:
        return "", left
    count, named = sum(missing for _, missing, _ in short), short[0][2]
    have = "has" if count == 1 else "have"
    # A pod of a job that overrides anything of its queue is not one of those that were tried.
    said = "" if look.spec.overrides else look.template_refused
    told = f"TorchrunQueue {look.spec.queue} says of its pods: {said}; Events" if said else "why, Events say"
    return f"{count} {have} no pod; {told}: kubectl describe job {named}", None


def lacking(look: Look) -> list[tuple[float, int, str]]:
    """The Jobs of the attempt that lack pods: since when they may have them, how many they lack, and their names."""
    pods = Counter(each.job for each in look.seen.workers_of(look.record.attempt))
    found = []
    for job in look.seen.of(look.record.attempt):
        begun = moment((job.item.get("status") or {}).get("startTime"))
        missing = job.pods - pods[job.uid]
        if begun is not None and missing > 0 and not (job.suspended or job.complete or job.ending):
            found.append((begun, missing, job.name))
    return found


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
