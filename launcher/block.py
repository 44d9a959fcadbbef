"""Whether a run fits into what is left of a capacity block. Pure: the clock is an input."""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil

from launcher.request import Block, Request


def refusal(request: Request, now: float, deadline: float) -> str:
    """Why a run that waits `now` until `deadline` must not; empty where nothing speaks against it.

    Both are seconds since the epoch.
    """
    block, pool = request.pool.block, request.pool.name
    if block is None or _over(block, now):
        return ""
    start = _start(block, now)
    if deadline < start:
        return (
            f"{coming(request, now)}, after the wait's end at {_time(deadline)}; capacityDeadlineSeconds"
            f" must be at least {ceil(start - now)}, or the run must start later"
        )
    ends = (
        f"the capacity block of pool {pool} ends at {_time(block.ends)},"
        f" and its machines are taken back from {_time(block.taken_back)}"
    )
    if now >= block.taken_back:
        return f"{ends}; it is {_time(now)}: use a pool with a later end of its reservation"
    longest = request.active_deadline_seconds
    if longest is None or start + longest <= block.taken_back:
        return ""
    return (
        f"{ends}, but the run may take until {_time(start + longest)}; activeDeadlineSeconds must be"
        f" at most {int(block.taken_back - start)} instead of {longest}, or the block must be a later one"
    )


def coming(request: Request, now: float) -> str:
    """That the pool's machines can't be had yet, as their block has not begun; empty where they can."""
    block = request.pool.block
    if block is None or _start(block, now) <= now:
        return ""
    return f"the capacity block of pool {request.pool.name} begins at {_time(_start(block, now))}"


def notice(request: Request, now: float) -> str:
    """What a person is warned of: a training without a time limit on machines that have one; empty without."""
    block = request.pool.block
    if block is None or request.active_deadline_seconds is not None or _over(block, now):
        return ""
    return f"the machines are taken back from {_time(block.taken_back)}, and activeDeadlineSeconds is not set"


def _start(block: Block, now: float) -> float:
    """The earliest moment at which machines can be had: on demand at once, else once the block has begun."""
    return now if block.begins is None or block.on_demand_fallback else max(now, block.begins)


def _over(block: Block, now: float) -> bool:
    """Whether the block is gone, so that machines are bought on demand."""
    return block.on_demand_fallback and now >= block.ends


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
