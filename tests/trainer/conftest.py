"""Starting the trainer as pods and laptops do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch.distributed as dist

from local.ports import free_ports

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 240


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said (stdout and stderr together)."""

    code: int
    output: str


class Node:
    """One machine's entry point, with what the training operator sets for it."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.process = subprocess.Popen(  # output in one stream, so that nothing waits for a reader
            command,
            cwd=ROOT,
            env={**kept, "OMP_NUM_THREADS": "1", "AWS_EC2_METADATA_DISABLED": "true", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> Ended:
        """Wait for the end."""
        output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        return Ended(self.process.returncode, output)


Start = Callable[..., Node]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """`start(*arguments, entry=..., **environ)`; what still runs at the end is killed."""
    nodes: list[Node] = []

    def run(*arguments: str, entry: tuple[str, ...] = ("-m", "trainer.entrypoint"), **environ: str) -> Node:
        nodes.append(Node([sys.executable, *entry, *arguments], environ))
        return nodes[-1]

    yield run
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()


@pytest.fixture(scope="module")
def operator() -> Callable[[int], list[dict[str, str]]]:
    """`operator(n)`: for each of n machines with one process, what the training operator sets."""

    def environments(nodes: int) -> list[dict[str, str]]:
        (port,) = free_ports(1)
        shared = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": "1", "TRAINYARD_DEVICE": "cpu"}
        place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
        return [{**shared, **place, "PET_NODE_RANK": str(rank)} for rank in range(nodes)]

    return environments


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone, as checkpoints have one of their own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()
