"""Check whether a run fits into the rest of a capacity block. Pure."""

from __future__ import annotations

from math import ceil

from launcher.manifests import stamp
from launcher.request import Block, NodeRequest


def refusal(request: NodeRequest, now: float, deadline: float) -> str:
    """Return why a run can't use the block if it waits from `now` until `deadline`; "" if it can.

    Both times are in seconds since the epoch.
    """
    block, pool = request.pool.block, request.pool.name
    if block is None or _is_over(block, now):
        return ""
    start = _start(block, now)
    if deadline < start:
        return (
            f"{not_started(request, now)}, after the deadline of the wait at {stamp(deadline)}; capacityDeadlineSeconds"
            f" must be at least {ceil(start - now)}, or the run must start later"
        )
    ends = (
        f"the capacity block of pool {pool} ends at {stamp(block.ends)},"
        f" and Karpenter drains its nodes from {stamp(block.reclaimed_at)}"
    )
    if now >= block.reclaimed_at:
        return f"{ends}; it is {stamp(now)}: use a pool with a later end of its reservation"
    longest = request.active_deadline_seconds
    if longest is None or start + longest <= block.reclaimed_at:
        return ""
    return (
        f"{ends}, but the run may take until {stamp(start + longest)}; activeDeadlineSeconds must be"
        f" at most {int(block.reclaimed_at - start)} instead of {longest}, or the block must be a later one"
    )


def not_started(request: NodeRequest, now: float) -> str:
    """Return the message that the capacity block has not started; "" if nodes can be launched."""
    block = request.pool.block
    if block is None or _start(block, now) <= now:
        return ""
    return f"the capacity block of pool {request.pool.name} starts at {stamp(_start(block, now))}"


def deadline_warning(request: NodeRequest, now: float) -> str:
    """Return a warning if the nodes have a time limit and the run has none; else ""."""
    block = request.pool.block
    if block is None or request.active_deadline_seconds is not None or _is_over(block, now):
        return ""
    return (
        f"Karpenter drains the nodes from {stamp(block.reclaimed_at)}, and activeDeadlineSeconds is not set"
    )


def _start(block: Block, now: float) -> float:
    """Return the earliest launch time of nodes: now if on demand, else the start of the block."""
    return now if block.begins is None or block.on_demand_fallback else max(now, block.begins)


def _is_over(block: Block, now: float) -> bool:
    """Return whether the block has ended. Then nodes are launched on demand."""
    return block.on_demand_fallback and now >= block.ends
