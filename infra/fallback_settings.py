"""Reading the pools that a run falls back to; part of `infra.settings`."""

from __future__ import annotations

from components.documents.launch import Candidate
from components.documents.pool import GPU, NEURON, Pool
from infra.model import PoolEntry
from infra.pool_settings import find_pool
from infra.reading import Section
from infra.worker_settings import CUDA, read_size, size_of_fallback, size_of_type

KEY = "fallbackPools"


def read_pool(section: Section, pools: list[PoolEntry]) -> PoolEntry | None:
    """Return the pool that a section's `pool` names, if the trainer can use it."""
    found = find_pool(section, pools)
    if found is None or found.sized is None or found.sized.resource != NEURON:
        return found
    # The trainer supports CUDA and CPUs. Users can run their own Neuron jobs on the pool.
    section.reject(
        "pool",
        f"'{found.pool.name}' has {found.pool.instance_type}, whose Neuron devices the trainer can't use; it must be"
        " a pool with NVIDIA GPUs or without accelerators. A stack without training creates its pools, too",
    )
    return None


def read_fallbacks(
    run: Section,
    pools: list[PoolEntry],
    first: Candidate | None,
    sized: Pool | None,
    device: str,
    least: int | None,
) -> list[Candidate]:
    """Return the fallbacks of the section `run`, in their order, without those with an unknown pool.

    Args:
        run: The section of the run.
        pools: The stack file's pools.
        first: What it trains on if it can, None where that pool is not known.
        sized: The first candidate's pool, None where its instance type is wrong.
        device: What it trains on, "" where that is wrong.
        least: Its minimum of nodes, None where that is wrong.
    """
    found: list[Candidate] = []
    places = {first.pool.name: run.at("pool")} if first else {}
    for section in run.entries(KEY, alone="pool"):
        entry = read_pool(section, pools)
        pool = entry.sized if entry else None
        name = entry.pool.name if entry else ""
        if name in places:
            section.reject("pool", f"'{name}' is {places[name]} already; it must be another pool")
        elif entry:
            places[name] = section.path
            _check_pool(section, entry, device, least)
        deadline = first.capacity_deadline_seconds if first else 1
        deadline = section.integer("capacityDeadlineSeconds", deadline, least=1, unit="seconds")
        default = size_of_type(pool)
        if pool and first and sized:
            same = device != CUDA and run.has("processesPerNode")
            default = size_of_fallback(pool, sized, first.size, same_processes=same)
        size = read_size(section, pool, device, default)
        section.done()
        if entry:
            found.append(Candidate(pool=entry.pool, size=size, capacity_deadline_seconds=deadline))
    return found


def _check_pool(section: Section, entry: PoolEntry, device: str, least: int | None) -> None:
    """What the run asks of every pool; a file system's zone is asked of all pools of the stack by `storage.lustre`."""
    pool, most = entry.pool, entry.max_nodes
    if device == CUDA and entry.sized and pool.resource != GPU:
        section.reject(
            "pool",
            f"'{pool.name}' is of {pool.instance_type}, which has no GPUs, and device is cuda; it must be a pool"
            " with GPUs",
        )
    if least is not None and most is not None and most < least:
        section.reject(
            "pool",
            f"'{pool.name}' may have at most {most} nodes, fewer than minNodes ({least}); it must be a"
            f" pool whose maxNodes is at least {least}",
        )
