"""Why the nodes are not there yet, in words, out of what Karpenter and the scheduler report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from launcher.core import block
from launcher.core.capacity import Count, ceiling, is_placeholder
from launcher.core.observe import Observation, Warned
from launcher.core.request import Request

# Error codes of EC2's CreateFleet that Karpenter treats as missing capacity (karpenter-provider-aws, pkg/errors), and
# what a person can do about those that waiting does not heal.
_CODES = {
    "InsufficientInstanceCapacity": "",
    "InsufficientCapacityOnHost": "",
    "UnfulfillableCapacity": "",
    "Unsupported": "the zone does not offer this type",
    "MaxSpotInstanceCountExceeded": "raise the account's spot quota",
    "VcpuLimitExceeded": "raise the account's vCPU quota",
    "InsufficientFreeAddressesInSubnet": "the subnet has no free addresses",
    "MaxFleetCountExceeded": "raise the account's fleet quota",
    "ReservationCapacityExceeded": "the capacity reservation is full",
    "RequestLimitExceeded": "AWS throttles the account",
}
_CODE = re.compile(r"\b(" + "|".join(_CODES) + r")\b")
# The reason of Karpenter's Event where its message has none of these codes.
_WITHOUT_CODE = "InsufficientCapacityError"
_MAX_PARTS = 4
_MAX_NAMES = 4


def refusals(request: Request, warnings: Iterable[Warned], since: float) -> Iterator[tuple[Warned, str]]:
    """What EC2 refused to the pool since this moment: each Event, and the error code in it."""
    for warning in warnings:
        # <pool>-<five characters>; another pool's name may begin like this one's.
        about_pool = warning.kind == "NodeClaim" and warning.name.rpartition("-")[0] == request.pool.name
        if not about_pool or warning.at < since:
            continue
        found = _CODE.search(warning.message)
        if found or warning.reason == _WITHOUT_CODE:
            yield warning, found.group(1) if found else warning.reason


def missing_capacity(request: Request, warnings: tuple[Warned, ...], since: float) -> str:
    """What EC2 refused since this moment, counted by error code; empty without a refusal."""
    codes = Counter(code for _, code in refusals(request, warnings, since))
    where = f"{request.pool.instance_type} in {request.pool.zone}"
    parts = []
    for code, times in sorted(codes.items()):
        advice = _CODES.get(code, "")
        parts.append(f"{code} for {where} ({times}x{'; ' + advice if advice else ''})")
    return ", ".join(parts)


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
