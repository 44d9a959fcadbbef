"""Whether a run fits into what is left of a capacity block. Pure: the clock is an input."""

from __future__ import annotations

from datetime import UTC, datetime

from launcher.core.request import Block, Request


def refusal(request: Request, now: float) -> str:
    """Why a run that starts `now` (seconds since the epoch) must not; empty where nothing speaks against it."""
    block, pool = request.pool.block, request.pool.name
    if block is None or _over(block, now):
        return ""
    ends = (
        f"the capacity block of pool {pool} ends at {_time(block.ends)},"
        f" and its machines are taken back from {_time(block.taken_back)}"
    )
    if now >= block.taken_back:
        return f"{ends}; it is {_time(now)}: right would be a pool whose reservation goes on"
    longest = request.active_deadline_seconds
    if longest is None or now + longest <= block.taken_back:
        return ""
    return (
        f"{ends}, but the training may take until {_time(now + longest)}; right would be activeDeadlineSeconds"
        f" of at most {int(block.taken_back - now)} instead of {longest}, or a later block"
    )


def notice(request: Request, now: float) -> str:
    """What a person is warned of: a training without a time limit on machines that have one; empty without."""
    block = request.pool.block
    if block is None or request.active_deadline_seconds is not None or _over(block, now):
        return ""
    return f"the machines are taken back from {_time(block.taken_back)}, and activeDeadlineSeconds is not set"


def _over(block: Block, now: float) -> bool:
    """Whether the block is gone, so that machines are bought on demand."""
    return block.on_demand_fallback and now >= block.ends


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
