"""Starting the trainer as pods and laptops do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch.distributed as dist

from local.ports import free_ports
from tests.trainer.forks import ForkedProgram

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 240


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said (stdout and stderr together)."""

    code: int
    output: str


def environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables of a node's first process, with these among them."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "AWS_EC2_METADATA_DISABLED": "true", **environ}


class Node:
    """One machine's entry point, with what the training operator sets for it."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.process: subprocess.Popen[str] | ForkedProgram = self._started(command, environment(environ))

    @staticmethod
    def _started(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str] | ForkedProgram:
        return subprocess.Popen(  # output in one stream, so that nothing waits for a reader
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self) -> Ended:
        """Wait for the end."""
        output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        return Ended(self.process.returncode, output)


class ForkedNode(Node):
    """The same in a fork of a process that has imported torch (tests/trainer/forks.py)."""

    @staticmethod
    def _started(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str] | ForkedProgram:
        return ForkedProgram(command[1:], environ)


Start = Callable[..., Node]


@contextmanager
def starting(kind: type[Node]) -> Iterator[Start]:
    """Start nodes of this kind; what still runs at the end is killed."""
    nodes: list[Node] = []

    def run(*arguments: str, entry: tuple[str, ...] = ("-m", "trainer.entrypoint"), **environ: str) -> Node:
        nodes.append(kind([sys.executable, *entry, *arguments], environ))
        return nodes[-1]

    yield run
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """`start(*arguments, entry=..., **environ)`: a new interpreter, which takes 2 s to import torch."""
    with starting(Node) as run:
        yield run


@pytest.fixture(scope="module")
def fork() -> Iterator[Start]:
    """`fork(*arguments, entry=..., **environ)`: the same, and torch is there at once."""
    with starting(ForkedNode) as run:
        yield run


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
