"""Why the nodes are not there yet, in words, out of what Karpenter and the scheduler report."""

from __future__ import annotations

from collections import Counter

from launcher import block
from launcher.capacity import Count, ceiling, is_placeholder
from launcher.observe import Observation
from launcher.refusals import describe_ended_instances, missing_capacity
from launcher.request import Request

_MAX_PARTS = 4
_MAX_NAMES = 4


def _starting(names: list[str]) -> str:
    """These NodeClaims, so that a person can look at them."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{len(names)} NodeClaim{'s' if len(names) > 1 else ''} starting: {', '.join(names[:_MAX_NAMES])}{more}"


def shortfall(
    request: Request, seen: Observation, counted: Count, since: float, most: int = _MAX_PARTS
) -> str:
    """What is known about the nodes still missing, the most telling first, in up to `most` parts."""
    parts = []
    coming = block.coming(request, seen.now)
    if coming:
        parts.append(coming)
    refused = missing_capacity(request, seen.warnings, since)
    if refused:
        parts.append(refused)
    ended = describe_ended_instances(request, seen.warnings, since)
    if ended:
        parts.append(ended)
    if seen.pool is not None and not seen.pool.ready:
        parts.append(f"NodePool {request.pool.name} is not ready: {seen.pool.problem}")
    highest, said = ceiling(request, seen)
    if highest < request.max_nodes:
        parts.append(said)
    for problem, times in Counter(counted.unusable.values()).most_common(2):
        parts.append(f"{times} node{'s' if times > 1 else ''}: {problem}")
    starting = [claim for claim in seen.claims if not claim.initialized and not claim.deleting]
    for problem, times in Counter(claim.problem for claim in starting if claim.problem).most_common(1):
        parts.append(f"{times} NodeClaim{'s' if times > 1 else ''} not launched: {problem}")
    on_their_way = sorted(claim.name for claim in starting if not claim.problem)
    if on_their_way:
        parts.append(_starting(on_their_way))
    pending = sum(
        is_placeholder(pod, request) and not pod.node and not pod.deleting for pod in seen.pods
    ) - len([claim for claim in starting if not claim.node])
    if pending > 0 and not refused:
        parts.append(f"{pending} placeholder{'s wait' if pending > 1 else ' waits'} for a node")
    return "; ".join(parts[:most]) or "waiting for Karpenter"
