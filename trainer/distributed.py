"""Joining the other processes, and agreeing with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.hang import timeout
from trainer.world import World, check_promise

T = TypeVar("T")


def find_device(wanted: str | None, local_rank: int) -> torch.device:
    """The device of this process: its own GPU, or the CPU. Raises TrainerError when cuda is wanted and not there."""
    count = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted is None and not count):
        return torch.device("cpu")
    if local_rank >= count:
        raise TrainerError(
            Exit.NO_CUDA,
            f"device: told cuda, and process {local_rank} of this machine finds {count} CUDA devices; "
            "expected one per process",
        )
    return torch.device("cuda", local_rank)


def join(config: Config, world: World) -> torch.device:
    """Check what was promised, meet the others, and return this process's device. Raises TrainerError."""
    check_promise(world, config.expected_nodes, config.processes_per_node)
    device = find_device(config.device, world.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit = timeout(config.start_timeout_seconds)  # shorter after the first step
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        timeout=limit,
        store=_store(world, limit),
        rank=world.rank,
        world_size=world.size,
        device_id=device if device.type == "cuda" else None,
    )
    return device


def _store(world: World, limit: timedelta) -> Store:
    """torchrun's own store, with names apart for each of its attempts on one machine.

    torch 2.15 keeps one store for all attempts (`_bootstrap_store_info` in elastic/rendezvous/dynamic_rendezvous.py),
    where processes that are started anew find the addresses of those before them, and end. Agents on several machines
    count their attempts apart; `trainer.entrypoint` has them make a store for each.
    """
    store, _, _ = next(rendezvous("env://", timeout=limit))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if world.nodes == 1 else "0"
    return PrefixStore(f"attempt {attempt}", store)


def new_group(limit: timedelta) -> dist.ProcessGroup:
    """A gloo group of all processes: for what must not disturb the training's own collectives."""
    group = dist.new_group(backend="gloo", timeout=limit)
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101 - a number is what those get who are not in it
    return group


def together(work: Callable[[], T], device: torch.device) -> T:
    """Do `work` in every process; when it fails in one, all end with that one's code and none waits for the others.

    Only TrainerErrors are agreed on; anything else ends the process, which the others notice as a lost connection.
    """
    code, result, failure = Exit.SUCCEEDED, None, None
    try:
        result = work()
    except TrainerError as error:
        code, failure = error.code, error
    agreed = torch.tensor(int(code), device=device)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    worst = Exit(int(agreed.item()))
    if worst != Exit.SUCCEEDED:
        # Else the group's threads may outlive the interpreter, which aborts the process: it ends with a signal then.
        dist.destroy_process_group()
        raise failure or TrainerError(worst, "another process could not go on; its log says why")
    assert result is not None  # noqa: S101 - no failure, so `work` returned
    return result
