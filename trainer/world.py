"""The number of processes, the rank of this one, and the torchrun agent that started it. Needs no torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.contract import Exit, TrainerError


@dataclass(frozen=True)
class World:
    """This process's place among all of them, as torchrun says it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    nodes: int

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> World:
        """From what torchrun sets (docs.pytorch.org/docs/stable/elastic/run.html). Raises TrainerError without it."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
        try:
            return cls(*(int(environ[name]) for name in names))
        except (KeyError, ValueError) as error:
            raise TrainerError(
                Exit.CONFIGURATION,
                f"{error.args[0]} is not what torchrun sets; start the trainer by "
                "`torchrun --standalone --nproc-per-node 2 -m trainer.train` or `python -m trainer.entrypoint`",
            ) from error


def check_promise(world: World, nodes: int | None, processes_per_node: int | None) -> None:
    """The launcher counted machines and said so: training with any other number would be another experiment.

    Raises TrainerError when a promise was made and is not kept; None promises nothing.
    """
    kept = (nodes is None or nodes == world.nodes) and (
        processes_per_node is None
        or (processes_per_node == world.local_size and world.size == world.nodes * world.local_size)
    )
    if not kept:
        promised = f"{nodes or 'any'} nodes x {processes_per_node or 'any'} processes"
        raise TrainerError(
            Exit.WORLD_SIZE,
            f"the world differs from the promise: expected {promised}, "
            f"found {world.nodes} nodes x {world.local_size} processes, {world.size} in all",
        )


def check_batch(world: World, batch_size: int) -> None:
    """Raises TrainerError where a step has fewer samples than there are processes: some would never learn anything.

    Any other number is shared out, also one that does not divide (docs/decisions/0019).
    """
    if batch_size < world.size:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"batch_size: {batch_size} is less than the {world.size} processes; expected a sample per step for each of "
            "them at least, or fewer processes",
        )


def would_start_anew(environ: Mapping[str, str]) -> bool:
    """Whether the agent starts its processes again when they end now, whatever their exit code.

    It says so in their environment (torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`).
    """
    done, most = environ.get("TORCHELASTIC_RESTART_COUNT", "0"), environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return int(done) < int(most)


def check_restarts(nodes: int, environ: Mapping[str, str]) -> None:
    """Raises TrainerError where agents on several machines may start processes anew, and these could not meet.

    Their one store, where it is shared by all attempts, holds the addresses of the processes before them. It is with
    the static rendezvous, and with c10d unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1; the agents tell their processes
    (`use_agent_store` in torch/distributed/elastic/rendezvous, static_tcp_rendezvous.py and dynamic_rendezvous.py).
    """
    most = int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if nodes > 1 and most > 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        raise TrainerError(
            Exit.CONFIGURATION,
            f"max-restarts: {most} on {nodes} machines, whose processes could not meet again once started anew; "
            "expected --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which "
            "python -m trainer.entrypoint sets, or --max-restarts 0",
        )


def stop_agent() -> None:
    """Tell the agent to end: it passes the signal on to its processes, waits for them, and starts none again."""
    os.kill(os.getppid(), signal.SIGTERM)
