"""Read EC2's refusals for a pool from Karpenter's Events, and decide whether more nodes may come. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from launcher.observe import Observation, WarningEvent
from launcher.request import MIN_RETRY_SECONDS, NodeRequest, count_of
from trainyard.k8s import names

# Error codes of EC2's CreateFleet that Karpenter treats as missing capacity (karpenter-provider-aws, pkg/errors), each
# with advice where waiting does not help.
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
# The reason of Karpenter's Event if its message has none of these codes.
_WITHOUT_CODE = "InsufficientCapacityError"
# Events of Karpenter on a NodeClaim whose instance EC2 terminated, and Events with the reason
# (karpenter-provider-aws, pkg/controllers/interruption/events).
_ENDED = "TerminatingOnInterruption"
_EXPLAINED = ("SpotInterrupted", "InstanceUnhealthy")


def describe_ended_instances(request: NodeRequest, warnings: Iterable[WarningEvent], since: float) -> str:
    """Return a message about instances of the pool that EC2 terminated since this time; "" if there are none.

    The cluster does not know the reason. At launch, it is usually a KMS key that Karpenter may not use
    (https://karpenter.sh/docs/troubleshooting/, "Node terminates before ready on failed encrypted EBS volume").
    """
    about = [each for each in warnings if _concerns_pool(request, each) and each.at >= since]
    explained = {each.name for each in about if each.reason in _EXPLAINED}
    ended = {each.name for each in about if each.reason == _ENDED} - explained
    if not ended:
        return ""
    pool = request.pool
    return (
        f"EC2 terminated {count_of(len(ended), 'instance')} of pool {pool.name} ({pool.instance_type} in"
        f" {pool.zone}); at launch, the usual cause is the KMS key of the disks (cluster.volumeKey)."
        " To see the reason: aws ec2 describe-instances --filters"
        f" Name=tag:{names.LABEL_NODEPOOL},Values={pool.name} --query"
        " 'Reservations[].Instances[].StateReason.Message'"
    )


def _concerns_pool(request: NodeRequest, warning: WarningEvent) -> bool:
    """Return whether a warning is about a NodeClaim of the pool: <pool>-<five characters>."""
    # Compare the whole name: the name of another pool may begin with this one's.
    return warning.kind == "NodeClaim" and warning.name.rpartition("-")[0] == request.pool.name


def refusals(
    request: NodeRequest, warnings: Iterable[WarningEvent], since: float
) -> Iterator[tuple[WarningEvent, str]]:
    """Yield EC2's refusals for the pool since this time: each Event, and its error code."""
    for warning in warnings:
        if not _concerns_pool(request, warning) or warning.at < since:
            continue
        found = _CODE.search(warning.message)
        if found or warning.reason == _WITHOUT_CODE:
            yield warning, found.group(1) if found else warning.reason


def missing_capacity(request: NodeRequest, warnings: tuple[WarningEvent, ...], since: float) -> str:
    """Return the message about EC2's refusals since this time, counted by error code; "" if there are none."""
    codes = Counter(code for _, code in refusals(request, warnings, since))
    where = f"{request.pool.instance_type} in {request.pool.zone}"
    parts = []
    for code, times in sorted(codes.items()):
        advice = _CODES.get(code, "")
        parts.append(f"{code} for {where} ({times}x{'; ' + advice if advice else ''})")
    return ", ".join(parts)


def is_out_of_capacity(request: NodeRequest, seen: Observation, since: float, until: float) -> bool:
    """Return whether no node can start before the time `until`, because of a refusal after `since`.

    Karpenter does not try an offering for three minutes after EC2 refused it. This matters only if the pool has one
    capacity type. With several types, Karpenter tries the next one at once.
    """
    if len((seen.pool.offers if seen.pool else {}).get(names.LABEL_CAPACITY_TYPE, ())) != 1:
        return False
    if any(not (claim.initialized or claim.deleting or claim.problem) for claim in seen.claims):
        return False
    last = max((warning.at for warning, _ in refusals(request, seen.warnings, since)), default=None)
    return last is not None and until <= last + MIN_RETRY_SECONDS
