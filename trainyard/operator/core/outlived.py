"""Workers that have ended while other containers of their pods go on. Pure.

A webhook may put such into every pod: Istio's proxy as a plain container, Vault's agent. Kubernetes ends none of them,
and a pod runs as long as one of its containers does: the job neither succeeds nor begins anew, and keeps its machines.
"""

from __future__ import annotations

from typing import Final

from trainyard.operator.core import names as n
from trainyard.operator.core.look import Look

# One that notices the worker's end, and ends as well, has until then.
PATIENCE_SECONDS: Final = 60.0


def outlived(look: Look) -> tuple[str, float | None]:
    """What there is to say of the first such worker, and in how many seconds there may be something or more to say."""
    waiting = [
        (each.end.at + PATIENCE_SECONDS - look.now, each)
        for each in look.seen.workers_of(look.record.attempt)
        if each.beside and each.end.at is not None and not (each.over or each.deleting)
    ]
    long = [worker for left, worker in waiting if left <= 0]
    left = min((left for left, _ in waiting if left > 0), default=None)
    if not long:
        return "", left
    first = min(long, key=lambda each: each.name)
    what = (
        f"container {first.beside[0]} goes"
        if len(first.beside) == 1
        else f"containers {_and(first.beside)} go"
    )
    others = f", and so do those of {len(long) - 1} more" if len(long) > 1 else ""
    return (
        f"{first.name} does not end: its container {n.WORKER_CONTAINER} ended with exit code {first.end.code}, and its "
        f"{what} on{others}; what ends with the worker is one of initContainers with restartPolicy: Always"
    ), left


def _and(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
