"""Placeholders once workers take their places, and workers that find none. Pure."""

from __future__ import annotations

from typing import Final

from trainyard.operator.core.decision import Removal, removal
from trainyard.operator.core.look import Look
from trainyard.operator.core.pool_request import NODE_START_SECONDS
from trainyard.operator.core.unstarted import lacking

# Workers take the places of placeholders within a second or two. Those of a scheduler or a priority class that takes
# none would wait for ever.
PATIENCE_SECONDS: Final = 20.0
DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")


def withdrawn(look: Look) -> tuple[Removal, ...]:
    """Removes every placeholder of the job."""
    return tuple(
        removal(each) for each in look.seen.placeholders if "deletionTimestamp" not in each["metadata"]
    )


def spent(look: Look) -> tuple[tuple[Removal, ...], float | None]:
    """The placeholders of a job whose workers take their places: those not needed any more, and when to look again."""
    workers, settings = look.seen.workers_of(look.record.attempt), look.settings
    nodes, here = look.record.raw.get("nodes"), withdrawn(look)
    if not here:
        return (), None
    placed = sum(bool(each.node) or each.over for each in workers)
    displaces = settings is not None and settings.queue.scheduler in DEFAULT_SCHEDULERS
    if not displaces or (isinstance(nodes, int) and placed >= nodes):
        return here, None
    # Placeholders may be just what a quota has no room for beside the workers: those have no pods then.
    waiting = [each.created for each in workers if not each.node and each.created is not None]
    since = min([*waiting, *(begun for begun, _, _ in lacking(look))], default=None)
    left = PATIENCE_SECONDS if since is None else since + PATIENCE_SECONDS - look.now
    return (here, None) if left <= 0 else ((), left)


def unplaced(look: Look) -> tuple[str, float | None]:
    """A worker that a machine was lost for and no other came; else in how many seconds there may be one.

    The others of a world of fixed size wait for it, each on a machine. Karpenter may buy it another one, in the time
    that any machine has to come of use. Another scheduler than Kubernetes' own may have pods wait for its own reasons.
    """
    settings = look.settings
    if settings is None or not settings.queue.pool:
        return "", None
    if any(each.least is not None for each in look.seen.of(look.record.attempt)):
        return "", None
    if settings.queue.scheduler not in DEFAULT_SCHEDULERS:
        return "", None
    waiting = [
        (each.created, each.name)
        for each in look.seen.workers_of(look.record.attempt)
        if not (each.node or each.over or each.deleting) and each.created is not None
    ]
    since, name = min(waiting, default=(None, ""))
    left = None if since is None else since + NODE_START_SECONDS - look.now
    return (name, None) if left is not None and left <= 0 else ("", left)
