"""How long workers took to start, out of the times that Karpenter, the scheduler and the kubelets noted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.core.observe import Observation, Pod

# Karpenter gives up a machine that has not joined after 15 minutes (sigs.k8s.io/karpenter v1.14.1,
# pkg/controllers/nodeclaim/lifecycle, registration): one that is older was there before.
_LONGEST_ORDER_SECONDS = 1200.0


def told(workers: Iterable[Pod], seen: Observation) -> str:
    """The slowest worker's start in words, empty as long as one of them has not started.

    From its placement on a machine to its first container it is mostly the pull of the image. What a machine took
    from its order on counts for those that were ordered for this run: the others waited for it.
    """
    pods = list(workers)
    if not pods or any(not pod.placed_at or not pod.started_at for pod in pods):
        return ""
    first_placed = min(pod.placed_at for pod in pods)
    said = (
        f"the slowest began {max(pod.started_at - pod.placed_at for pod in pods):.0f} s after its placement"
    )
    ordered = {claim.node: seen.now - claim.age for claim in seen.claims if claim.node}
    waits = [
        pod.started_at - ordered[pod.node]
        for pod in pods
        if pod.node in ordered and first_placed - ordered[pod.node] <= _LONGEST_ORDER_SECONDS
    ]
    return f"{said}, {max(waits):.0f} s after its machine was ordered" if waits else said
