"""The number of processes, the rank of this one, and the torchrun agent that started it. Needs no torch."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.contract import Exit, TrainerError


@dataclass(frozen=True)
class World:
    """The rank of this process and the number of processes, as torchrun sets them."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    nodes: int

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> World:
        """Read the variables that torchrun sets (docs.pytorch.org/docs/stable/elastic/run.html).

        Raises:
            TrainerError: A variable is missing, or is not a number in its range.
        """
        sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
        ranks = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE"}
        problems: list[str] = []
        found: dict[str, int] = {}
        for name in (*sizes, *ranks):
            text = environ.get(name, "")
            limit = found.get(ranks.get(name, ""))
            minimum = 1 if name in sizes else 0
            if not (text.isascii() and text.isdecimal()) or not minimum <= int(text) < (limit or math.inf):
                given = repr(text) if name in environ else "not set"
                below = f" and less than {ranks[name]}, {limit}" if limit else ""
                problems.append(f"{name} is {given}; it must be a whole number of at least {minimum}{below}")
            else:
                found[name] = int(text)
        if problems:
            raise TrainerError(
                Exit.CONFIGURATION,
                f"{'; '.join(problems)}. torchrun sets these variables: start the trainer with "
                "`torchrun --standalone --nproc-per-node 2 -m trainer.train` or `python -m trainer.entrypoint`",
            )
        return cls(
            rank=found["RANK"],
            size=found["WORLD_SIZE"],
            local_rank=found["LOCAL_RANK"],
            local_size=found["LOCAL_WORLD_SIZE"],
            nodes=found["GROUP_WORLD_SIZE"],
        )


def describe_expected(nodes: int | None, processes_per_node: int | None) -> str | None:
    """Return the world that the launcher counted, in words; None if it counted nothing."""
    if nodes is None and processes_per_node is None:
        return None
    return f"{nodes or 'any'} nodes x {processes_per_node or 'any'} processes"


def check_expected(world: World, nodes: int | None, processes_per_node: int | None) -> None:
    """Check that the world has the nodes and processes that the launcher counted. None allows any number.

    Raises:
        TrainerError: The world differs.
    """
    is_expected = (nodes is None or nodes == world.nodes) and (
        processes_per_node is None
        or (processes_per_node == world.local_size and world.size == world.nodes * world.local_size)
    )
    if not is_expected:
        raise TrainerError(
            Exit.WORLD_SIZE,
            f"the world is not as expected: expected {describe_expected(nodes, processes_per_node)}, "
            f"found {world.nodes} nodes x {world.local_size} processes, {world.size} in all",
        )


def check_batch(world: World, batch_size: int) -> None:
    """Check that a step has a sample for each process. The number need not divide (docs/decisions/0019).

    Raises:
        TrainerError: There are fewer samples than processes, so that some would have no work.
    """
    if batch_size < world.size:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"batch_size: {batch_size} is less than the {world.size} processes; it must be at least one sample per "
            "process. Use a larger batch or fewer processes",
        )


def will_restart_processes(environ: Mapping[str, str]) -> bool:
    """Return whether the torchrun agent restarts its processes if they end now, with any exit code.

    The agent sets these variables (torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`).
    """
    count = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) < int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))


def check_restarts(nodes: int, environ: Mapping[str, str]) -> None:
    """Check that processes that torchrun restarts on several nodes can connect to each other again.

    They can't if all attempts share one store, because it has the addresses of the previous processes. This is so with
    the static rendezvous, and with c10d unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1. The agents set a variable
    (`use_agent_store` in torch/distributed/elastic/rendezvous, static_tcp_rendezvous.py and dynamic_rendezvous.py).

    Raises:
        TrainerError: Restarts are allowed, and the attempts share one store.
    """
    restarts = int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if nodes > 1 and restarts > 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        raise TrainerError(
            Exit.CONFIGURATION,
            f"max-restarts: {restarts} on {nodes} nodes, whose processes could not meet after a restart. "
            "Use --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which "
            "python -m trainer.entrypoint sets, or --max-restarts 0",
        )


def stop_agent() -> None:
    """Stop the torchrun agent. It forwards the signal to its processes, waits for them, and restarts none."""
    os.kill(os.getppid(), signal.SIGTERM)
