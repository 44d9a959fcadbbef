"""Reading the pools that a run falls back to; part of `infra.settings`."""

from __future__ import annotations

from components.shared.launch import Candidate
from components.shared.pool import GPU, NEURON, Pool
from infra.reading import Section, hint
from infra.worker_settings import CUDA, read_size, size_of_fallback, size_of_type

KEY = "fallbackPools"


def read_pool(section: Section, pools: list[Pool | None]) -> Pool | None:
    """The pool that a section's `pool` names, if the trainer can use it. `pools` has None for one that is wrong."""
    name = section.text("pool", wanted="the name of a pool")
    if "pool" in section.wrong or not pools:
        return None
    for pool in pools:
        if pool and pool.name == name:
            if pool.resource != NEURON:
                return pool
            # The trainer knows CUDA and CPUs; a Neuron job is the user's own, on the same pool.
            section.reject(
                "pool",
                f"'{name}' is of {pool.instance_type}, whose Neuron devices the trainer can't use; it must be a pool"
                " with NVIDIA GPUs or without accelerators (a stack without training has its pools all the same)",
            )
            return None
    if None in pools:
        # The one that is meant may be among those with mistakes of their own.
        return None
    names = [pool.name for pool in pools if pool]
    section.reject("pool", f"'{name}' is no pool here{hint(name, names)} (pools: {', '.join(names)})")
    return None


def read_fallbacks(
    run: Section, pools: list[Pool | None], first: Candidate | None, device: str, least: int | None
) -> list[Candidate]:
    """The fallbacks of the section `run`, in their order, without those that are wrong.

    `first` is what it trains on if it can, None where that is wrong itself; `least` is its minimum, None where that is.
    """
    found: list[Candidate] = []
    places = {first.pool.name: run.at("pool")} if first else {}
    for section in run.entries(KEY, alone="pool"):
        pool = read_pool(section, pools)
        if pool and pool.name in places:
            section.reject("pool", f"'{pool.name}' is {places[pool.name]} already; it must be another pool")
        elif pool:
            places[pool.name] = section.path
            _check_pool(section, pool, device, least)
        deadline = first.capacity_deadline_seconds if first else 1
        deadline = section.integer("capacityDeadlineSeconds", deadline, least=1, unit="seconds")
        default = size_of_type(pool)
        if pool and first:
            same = device != CUDA and run.has("processesPerNode")
            default = size_of_fallback(pool, first.pool, first.size, same_processes=same)
        size = read_size(section, pool, device, default)
        section.done()
        if pool:
            found.append(Candidate(pool=pool, size=size, capacity_deadline_seconds=deadline))
    return found


def _check_pool(section: Section, pool: Pool, device: str, least: int | None) -> None:
    """What the run asks of every pool; a file system's zone is asked of all pools of the stack by `storage.lustre`."""
    if device == CUDA and pool.resource != GPU:
        section.reject(
            "pool",
            f"'{pool.name}' is of {pool.instance_type}, which has no GPUs, and device is cuda; it must be a pool"
            " with GPUs",
        )
    if least is not None and pool.max_nodes < least:
        section.reject(
            "pool",
            f"'{pool.name}' may have at most {pool.max_nodes} machines, fewer than minNodes ({least}); it must be a"
            f" pool whose maxNodes is at least {least}",
        )
