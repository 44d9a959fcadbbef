"""Join the other processes, and agree with them on errors. The entry point is `init_distributed`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainer.config import Config
from trainer.consistency import WAIT_SECONDS, check_equal, common_settings, show
from trainer.contract import AgreedError, Exit, TrainerError
from trainer.failure_broadcast import failure_message, shared
from trainer.hang import timeout
from trainer.world import World, check_batch, check_expected, check_restarts, describe_expected

T = TypeVar("T")


def find_device(wanted: str | None, local_rank: int, local_size: int) -> torch.device:
    """Return the device of this process: its GPU, or the CPU.

    Raises:
        TrainerError: The node has fewer GPUs than processes. All its processes raise this.
    """
    count = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted is None and not count):
        return torch.device("cpu")
    if local_size > count:
        raise TrainerError(
            Exit.NO_CUDA,
            f"device: {'cuda is required, and ' if wanted else ''}this node has {count} CUDA devices for {local_size} "
            "processes; there must be one per process",
        )
    return torch.device("cuda", local_rank)


def init_distributed(config: Config, world: World) -> tuple[torch.device, Store]:
    """Check the world and the settings, and create the process group. Return the device and the common store.

    Raises:
        TrainerError: The world is not as expected, or settings differ. All processes raise this.
    """
    with shared():
        try:
            check_expected(world, config.expected_nodes, config.processes_per_node)
        except TrainerError:
            kind = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
            expected = describe_expected(config.expected_nodes, config.processes_per_node)
            with suppress(RuntimeError):  # the store can't be reached
                store = common_store(world, timedelta(seconds=WAIT_SECONDS))
                show(store, world, expected, kind, is_refused=True)
            raise
    check_restarts(world.nodes, os.environ)
    device = find_device(config.device, world.local_rank, world.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit = timeout(config.start_timeout_seconds)  # shorter after the first step
    store = common_store(world, limit)
    # Before the group exists: processes with different devices would wait for each other in it.
    with shared():
        check_equal(store, world, "settings", common_settings(config, device), Exit.CONFIGURATION)
        check_batch(world, config.batch_size)
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        timeout=limit,
        store=store,
        rank=world.rank,
        world_size=world.size,
        device_id=device if device.type == "cuda" else None,
    )
    return device, store


def common_store(world: World, limit: timedelta) -> Store:
    """Return torchrun's store, with a prefix for each attempt on a single node.

    torch 2.15 has one store for all attempts (`_bootstrap_store_info` in elastic/rendezvous/dynamic_rendezvous.py), in
    which restarted processes would find old addresses and fail. Agents on several nodes count their attempts
    separately; there `trainer.entrypoint` sets a new store for each attempt, and `check_restarts` requires it.
    """
    store, _, _ = next(rendezvous("env://", timeout=limit))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if world.nodes == 1 else "0"
    return PrefixStore(f"attempt {attempt}", store)


def new_group(limit: timedelta) -> dist.ProcessGroup:
    """Create a gloo group of all processes, separate from the collectives of the training."""
    group = dist.new_group(backend="gloo", timeout=limit)
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101 - all processes are in it
    return group


def together(work: Callable[[], T], device: torch.device) -> T:
    """Do `work` in every process. If it fails in one, all processes raise an error with its exit code.

    Other exceptions than TrainerError end this process, and the others lose the connection.

    Raises:
        AgreedError: In the first process by rank in which `work` failed.
        TrainerError: In all other processes; it names that process.
    """
    result, failure = None, None
    try:
        result = work()
    except TrainerError as error:
        failure = error
    rank, size = dist.get_rank(), dist.get_world_size()
    # The maximum gives the highest code and the lowest failed rank. Processes without a failure contribute 0.
    mine = (int(failure.code), size - rank) if failure else (0, 0)
    agreed = torch.tensor(mine, device=device)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    worst, first = Exit(int(agreed[0].item())), size - int(agreed[1].item())
    if worst != Exit.SUCCEEDED:
        # Otherwise the threads of the group may outlive the interpreter, which aborts the process with a signal.
        dist.destroy_process_group()
        if failure is not None and rank == first:
            raise AgreedError(failure.code, str(failure)) from failure
        raise TrainerError(worst, failure_message(first))
    return cast(T, result)


def gather_objects(own: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return `own` of all processes of `group` (by default of the world), by rank. They are pickled."""
    found = [own] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def from_first(work: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Do `work` in the first process of a gloo `group`. All return its pickled result or raise its TrainerError.

    Other exceptions end the first process, and the others lose the connection.
    """
    outcome: list[tuple[T | None, tuple[Exit, str] | None]] = [(None, None)]
    if dist.get_rank(group) == 0:
        try:
            outcome = [(work(), None)]
        except TrainerError as error:
            outcome = [(None, (error.code, str(error)))]
    dist.broadcast_object_list(outcome, src=dist.get_global_rank(group, 0), group=group)
    result, failure = outcome[0]
    if failure is not None:
        raise TrainerError(*failure)
    return cast(T, result)
