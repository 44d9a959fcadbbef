"""Run a function of a test in the processes of one gloo world."""

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
    "trainer.checkpoint.checkpointer",
)


def own_world() -> World:
    """Return the world of a process of `run_processes`: all are on one node."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return World(rank, size, rank, size, 1)


def _run_one(
    work: Callable[..., Any], rank: int, size: int, port: int, arguments: tuple[Any, ...], results: Any
) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_PORT"] = str(port)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        answer = pickle.dumps(work(*arguments))  # otherwise tensors would be shared memory
        dist.barrier()  # the first process to exit would close the others' connections
        results.put((rank, answer, None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    results.close()
    results.join_thread()
    os._exit(0)  # gloo's threads may abort the interpreter's exit (trainer/train.py)


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Return a context whose processes fork from one that has imported the modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def run_processes(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `work(*arguments)` in `size` processes of one gloo world; return the results by rank."""
    context = fork_server()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = context.Queue()
    processes = [
        context.Process(target=_run_one, args=(work, rank, size, store.port, arguments, results))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        answers = sorted((results.get(timeout=LIMIT_SECONDS) for _ in processes), key=lambda each: each[0])
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    failures = [failure for _, _, failure in answers if failure]
    assert not failures, "\n".join(failures)
    return [pickle.loads(answer) for _, answer, _ in answers]  # noqa: S301 - our own
