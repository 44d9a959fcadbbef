"""Fixtures that start the trainer as a pod or a laptop does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch.distributed as dist

from local.ports import free_ports
from tests.integration.trainer.forks import ROOT, ForkedProgram
from tests.integration.trainer.s3_proxy import KEYS, S3Proxy, serve_s3

LIMIT_SECONDS = 240


def new_process(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command; one stream carries its stdout and stderr."""
    return subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a process, stdout and stderr together."""

    code: int
    output: str


class Node:
    """The first process of one node."""

    def __init__(self, process: subprocess.Popen[str] | ForkedProgram) -> None:
        self.process = process

    def end(self) -> Ended:
        """Wait for its exit."""
        output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        assert self.process.returncode is not None
        return Ended(self.process.returncode, output)


class Start:
    """Start nodes; `close` kills the first processes that still run."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []

    def __call__(
        self, *arguments: str, entry: tuple[str, ...] = ("-m", "trainer.entrypoint"), **environ: str
    ) -> Node:
        """Start a new interpreter."""
        process = new_process([sys.executable, *entry, *arguments], environment(environ))
        return self._register(process)

    def fork(
        self,
        *arguments: str,
        entry: tuple[str, ...] = ("-m", "trainer.entrypoint"),
        has_own_group: bool = False,
        **environ: str,
    ) -> Node:
        """Start the program as a fork of a server that has imported torch (tests/integration/trainer/forks.py)."""
        words = [*entry, *arguments]
        return self._register(ForkedProgram(words, environment(environ), has_own_group=has_own_group))

    def gang(
        self,
        *arguments: str,
        module: str = "trainer.train",
        processes: int = 1,
        nodes: int = 1,
        restarts: int = 0,
        patch: str = "",
        **environ: str,
    ) -> Node:
        """Start workers under tests.integration.trainer.gang, without torchrun; none of them imports torch."""
        words = (str(nodes), str(processes), str(restarts), module, *arguments)
        return self.fork(*words, entry=("-m", "tests.integration.trainer.gang"), PATCH=patch, **environ)

    def close(self) -> None:
        """Kill the first processes that still run."""
        for node in self._nodes:
            if node.process.poll() is None:
                node.process.kill()
                node.process.wait()

    def _register(self, process: subprocess.Popen[str] | ForkedProgram) -> Node:
        self._nodes.append(Node(process))
        return self._nodes[-1]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a node's first process, with these overrides."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**inherited, "OMP_NUM_THREADS": "1", "AWS_EC2_METADATA_DISABLED": "true", **environ}


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """`start(*arguments, entry=..., **environ)`, `start.fork(...)` and `start.gang(...)`."""
    starter = Start()
    yield starter
    starter.close()


Operator = Callable[[int], list[dict[str, str]]]


@pytest.fixture(scope="module")
def operator() -> Operator:
    """`operator(n)`: the variables that the training operator sets on each of n nodes."""

    def environments(nodes: int) -> list[dict[str, str]]:
        (port,) = free_ports(1)
        shared = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": "1", "TRAINYARD_DEVICE": "cpu"}
        place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
        return [{**shared, **place, "PET_NODE_RANK": str(rank)} for rank in range(nodes)]

    return environments


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    """A process group of this process only, as checkpoints have one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of moto's S3, with the bucket that the test file names in BUCKET."""
    with serve_s3(request.module.BUCKET) as client:
        yield client


@pytest.fixture
def proxy(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """A proxy to S3, which boto3 uses in this process."""
    with S3Proxy(s3.meta.endpoint_url) as proxy:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
        yield proxy
