"""Joining the other processes, and agreeing with them."""

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
from trainer.consistency import WAIT_SECONDS, Expected, check_same, must_agree, show
from trainer.contract import Exit, TrainerError
from trainer.failure_broadcast import shared, told_by
from trainer.hang import timeout
from trainer.world import World, check_batch, check_promise, check_restarts

T = TypeVar("T")


def find_device(wanted: str | None, local_rank: int, local_size: int) -> torch.device:
    """The device of this process: its own GPU, or the CPU.

    Raises TrainerError, alike in all processes of a machine, when it has fewer GPUs than processes and the CPU is not
    what is wanted, or what is left where nothing is said.
    """
    count = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted is None and not count):
        return torch.device("cpu")
    if local_size > count:
        told = "told cuda, and this" if wanted else "this"
        raise TrainerError(
            Exit.NO_CUDA,
            f"device: {told} machine has {count} CUDA devices for {local_size} processes; expected one per process",
        )
    return torch.device("cuda", local_rank)


def join(config: Config, world: World) -> tuple[torch.device, Store]:
    """Check what was promised and meet the others. Returns this process's device, and the store in which all met.

    Raises TrainerError, alike in all processes where their settings differ.
    """
    with shared():
        _check_promise(config, world)
    check_restarts(world.nodes, os.environ)
    device = find_device(config.device, world.local_rank, world.local_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit = timeout(config.start_timeout_seconds)  # shorter after the first step
    store = _store(world, limit)
    # Before the group: processes with different devices would wait for each other in it.
    with shared():
        check_same(store, world, "settings", must_agree(config, device), Exit.CONFIGURATION)
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


def _check_promise(config: Config, world: World) -> None:
    """Raises TrainerError, alike in all processes, when the world is another one; rank 0 shows it before."""
    try:
        check_promise(world, config.expected_nodes, config.processes_per_node)
    except TrainerError:
        kind = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
        promised = Expected(nodes=config.expected_nodes, processes_per_node=config.processes_per_node)
        with suppress(RuntimeError):  # without a store that can be reached there is no table
            show(_store(world, timedelta(seconds=WAIT_SECONDS)), world, promised, kind)
        raise


def _store(world: World, limit: timedelta) -> Store:
    """torchrun's own store, with names apart for each of its attempts on one machine.

    torch 2.15 keeps one store for all attempts (`_bootstrap_store_info` in elastic/rendezvous/dynamic_rendezvous.py),
    where processes that are started anew find the addresses of those before them, and end. Agents on several machines
    count their attempts apart; `trainer.entrypoint` has them make a store for each, and `check_restarts` asks for it.
    """
    store, _, _ = next(rendezvous("env://", timeout=limit))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if world.nodes == 1 else "0"
    return PrefixStore(f"attempt {attempt}", store)


def new_group(limit: timedelta) -> dist.ProcessGroup:
    """A gloo group of all processes: for what must not disturb the training's own collectives."""
    group = dist.new_group(backend="gloo", timeout=limit)
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101 - a number is what those get who are not in it
    return group


class OwnError(TrainerError):
    """What this process could not do, and tells for all that could not either."""


def together(work: Callable[[], T], device: torch.device) -> T:
    """Do `work` in every process; when it fails in one, all end with that one's code and none waits for the others.

    Of those that fail the first by rank raises OwnError; the others raise TrainerError, which names it. Only
    TrainerErrors are agreed on; anything else ends the process, which the others notice as a lost connection.
    """
    result, failure = None, None
    try:
        result = work()
    except TrainerError as error:
        failure = error
    rank, size = dist.get_rank(), dist.get_world_size()
    # The largest of code and first rank: what the others add is 0.
    mine = (int(failure.code), size - rank) if failure else (0, 0)
    agreed = torch.tensor(mine, device=device)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    worst, first = Exit(int(agreed[0].item())), size - int(agreed[1].item())
    if worst != Exit.SUCCEEDED:
        # Else the group's threads may outlive the interpreter, which aborts the process: it ends with a signal then.
        dist.destroy_process_group()
        if failure is not None and rank == first:
            raise OwnError(failure.code, str(failure)) from failure
        raise TrainerError(worst, told_by(first))
    assert result is not None  # noqa: S101 - no failure, so `work` returned
    return result


def from_first(work: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Do `work` in the first process of a gloo `group` alone: all return its result, or raise the same TrainerError.

    Only TrainerErrors are told to the others; anything else ends the first process, which they notice as a lost
    connection. The result goes to them pickled.
    """
    told: list[tuple[T | None, tuple[Exit, str] | None]] = [(None, None)]
    if dist.get_rank(group) == 0:
        try:
            told = [(work(), None)]
        except TrainerError as error:
            told = [(None, (error.code, str(error)))]
    dist.broadcast_object_list(told, src=dist.get_global_rank(group, 0), group=group)
    result, failure = told[0]
    if failure is not None:
        raise TrainerError(*failure)
    return cast(T, result)
