"""Processes of one gloo world, in which a test does its work."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from trainer.world import World

LIMIT_SECONDS = 240
# A server imports these once and forks the processes. Importing them starts no thread.
PRELOADED = (
    "tests.integration.trainer.together",
    "tests.integration.trainer.forks",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "trainer.checkpoints",
)


def own_world() -> World:
    """The world of a process of `together`: all on one node."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return World(rank, size, rank, size, 1)


def _one(
    work: Callable[..., Any], rank: int, size: int, port: int, arguments: tuple[Any, ...], told: Any
) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = str(port)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        answer = pickle.dumps(work(*arguments))  # else tensors would be shared memory
        dist.barrier()  # else who ends first takes its connections from the others
        told.put((rank, answer, None))
    except BaseException:
        told.put((rank, None, traceback.format_exc()))
    told.close()
    told.join_thread()
    os._exit(0)  # gloo's threads may abort an interpreter's own end (trainer/train.py)


def fork_server() -> multiprocessing.context.ForkServerContext:
    """The processes that it makes are forks of one that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def together(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(*arguments)` returns in each of so many processes of one gloo world, by rank."""
    context = fork_server()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = context.Queue()
    processes = [
        context.Process(target=_one, args=(work, rank, size, store.port, arguments, told))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        answers = sorted((told.get(timeout=LIMIT_SECONDS) for _ in processes), key=lambda each: each[0])
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    failures = [failure for _, _, failure in answers if failure]
    assert not failures, "\n".join(failures)
    return [pickle.loads(answer) for _, answer, _ in answers]  # noqa: S301 - our own
