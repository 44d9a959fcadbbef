"""How long workers took to start, as Karpenter, the scheduler and the kubelets noted it, or what keeps them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcher.held import PATIENCE_SECONDS
from launcher.observe import Claim, Pod

# Kubernetes notes a creation in whole seconds, cut off.
_ROUNDING_SECONDS = 1.0


def orders(claims: Iterable[Claim], now: float, since: float) -> dict[str, float]:
    """When the machine of each node was ordered, for those that were ordered after `since`; seconds since the epoch."""
    ordered = {claim.node: now - claim.age for claim in claims if claim.node}
    return {node: moment for node, moment in ordered.items() if moment >= since - _ROUNDING_SECONDS}


def told(workers: Iterable[Pod], ordered: Mapping[str, float]) -> str:
    """The slowest worker's start in words, empty as long as one of them has not started.

    From its placement on a machine to its first container it is mostly the pull of the image. The time since a
    machine was ordered counts where it was for this run (`orders`): the others stood there already.
    """
    pods = list(workers)
    if not pods or any(not pod.placed_at or not pod.started_at for pod in pods):
        return ""
    said = (
        f"the slowest began {max(pod.started_at - pod.placed_at for pod in pods):.0f} s after its placement"
    )
    waits = [pod.started_at - ordered[pod.node] for pod in pods if pod.node in ordered]
    return f"{said}, {max(waits):.0f} s after its machine was ordered" if waits else said


def held(workers: Iterable[Pod], now: float) -> str:
    """The first worker that does not start, with the reason; empty for none. `now` is seconds since the epoch."""
    stuck = [
        pod
        for pod in workers
        if pod.held
        and pod.phase == "Pending"
        and not pod.deleting
        and 0 < pod.created <= now - PATIENCE_SECONDS
    ]
    first = min(stuck, key=lambda pod: pod.name, default=None)
    return f"{first.name} {first.held}" if first is not None else ""
