"""Rendezvous of two torchrun workers, started as in their pods: through etcd, or static by rank."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from local.ports import free_ports
from tests.integration.trainer.conftest import LIMIT_SECONDS, Ended, Node, environment, new_process
from tests.integration.trainer.forks import ForkedProgram
from tests.tools import etcd_with_v2
from trainyard.operator import command
from trainyard.operator import names as n
from trainyard.operator.api.job import ETCD, STATIC
from trainyard.operator.command import Rendezvous, build_command
from trainyard.operator.resources import Size
from trainyard.operator.signal_forwarder import wrap_command

pytestmark = pytest.mark.trainer

TRAINING_SCRIPT = """
import os, torch, torch.distributed as world
world.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.full((2, 4), 1.0 + world.get_rank())).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weight = model.module.weight.detach()
all_weights = [torch.zeros_like(weight) for _ in range(world.get_world_size())]
world.all_gather(all_weights, weight)
assert all(torch.equal(each, weight) for each in all_weights)
world.barrier()
print("met", os.environ["GROUP_RANK"], world.get_rank(), world.get_world_size(), flush=True)
world.destroy_process_group()
os._exit(0)  # torch's threads sometimes abort at the interpreter's exit
"""
# The prefix of torch's keys in etcd, by backend.
STATE_KEYS = {"etcd": "torchelastic/p2p", "etcd-v2": "torch/elastic/rendezvous"}
START_SECONDS = 60.0
# torch announces the port of the workers' store and binds it seconds later (RendezvousStoreInfo.build in
# torch/distributed/elastic/rendezvous/api.py). A pod has its own ports; here another process may take it.
PORT_TAKEN = "EADDRINUSE"
ATTEMPTS = 3
Worker = Callable[..., Node]


@contextmanager
def serve_etcd(directory: Path) -> Iterator[str]:
    """Run an etcd server with the v2 API; yield its host and port."""
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    words = [
        str(etcd_with_v2()),
        "--enable-v2=true",
        f"--data-dir={directory / 'data'}",
        f"--listen-client-urls=http://{client}",
        f"--advertise-client-urls=http://{client}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster=default=http://{peer}",
        "--unsafe-no-fsync",
    ]
    log = directory / "etcd.log"
    with log.open("wb") as sink, subprocess.Popen(words, stdout=sink, stderr=sink) as server:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not http_get(f"http://{client}/health"):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield client
        finally:
            server.kill()


def http_get(url: str) -> str:
    """Return the response's body, or "" on an error."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.URLError:
        return ""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_etcd(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint


@pytest.fixture
def worker() -> Iterator[Worker]:
    """`worker(rendezvous, rank, fork=True)`: start a worker. At the end running workers get SIGTERM.

    A fork runs torchrun without the shell that is a pod's first process.
    """
    with ExitStack() as stack:

        def start_worker(rendezvous: Rendezvous, rank: int, fork: bool = True) -> Node:
            built = build_command("python", ("-c", TRAINING_SCRIPT), rendezvous)
            path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
            variables = environment({**built.environment, "PATH": path})
            words = built.words if fork else wrap_command(built.words)
            words = [expand_word(word, rank) for word in words]
            if fork:
                assert words[0] == "torchrun"
                torchrun = ["-m", "torch.distributed.run", *words[1:]]
                node = Node(ForkedProgram(torchrun, variables))
            else:
                node = Node(new_process(words, variables))
            stack.callback(node.process.wait, START_SECONDS)
            stack.callback(node.process.terminate)
            return node

        yield start_worker


def expand_word(word: str, rank: int) -> str:
    """Expand the variables of an argument as the kubelet does."""
    return word.replace(f"$({n.ENV_NODE_RANK})", str(rank)).replace("$$", "$")


def create_rendezvous(backend: str, endpoint: str) -> Rendezvous:
    return Rendezvous(
        backend=backend,
        endpoint=endpoint,
        id=f"{backend}-0",
        size=Size(nodes=2, minimum=2, gpus=1),
        is_external=True,
    )


def wait_for_exit(nodes: list[Node]) -> list[Ended]:
    """Wait for all nodes. If one fails, stop the others: torch lets them wait for half an hour."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        codes = [node.process.poll() for node in nodes]
        if any(codes) or None not in codes:
            break
        time.sleep(0.1)
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
    return [node.end() for node in nodes]


def read_ranks(nodes: list[Node]) -> list[tuple[str, ...]]:
    """Assert that all succeeded; return the node rank, rank and world size of each."""
    ended = wait_for_exit(nodes)
    assert [each.code for each in ended] == [0, 0], "\n".join(each.output for each in ended)
    found = [re.findall(r"met (\d+) (\d+) (\d+)$", each.output, re.MULTILINE) for each in ended]
    return [each for (each,) in found]


@pytest.mark.parametrize("backend", ETCD)
def test_two_workers_rendezvous_through_etcd(backend: str, etcd: str, worker: Worker) -> None:
    for attempts_left in reversed(range(ATTEMPTS)):
        rendezvous = replace(create_rendezvous(backend, etcd), id=f"{backend}-{attempts_left}")
        nodes = [worker(rendezvous, rank) for rank in range(2)]
        try:
            found = read_ranks(nodes)
        except AssertionError as error:
            if not attempts_left or PORT_TAKEN not in str(error):
                raise
        else:
            break
    # Both are on one machine and may join in any order.
    assert sorted(found) == [("0", "0", "2"), ("1", "1", "2")]
    assert rendezvous.id in http_get(f"http://{etcd}/v2/keys/{STATE_KEYS[backend]}?recursive=true"), (
        "etcd must have the keys of the rendezvous"
    )


def test_static_rendezvous_gives_each_node_its_own_rank(
    worker: Worker,
) -> None:
    (port,) = free_ports(1)
    rendezvous = create_rendezvous(STATIC, f"127.0.0.1:{port}")
    nodes = [worker(rendezvous, rank, fork=False) for rank in range(2)]
    assert read_ranks(nodes) == [("0", "0", "2"), ("1", "1", "2")]


@pytest.mark.parametrize("backend", ETCD)
def test_worker_that_waits_alone_ends_after_the_set_time(
    backend: str,
    etcd: str,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each backend has its own option for the timeout and ignores unknown ones."""
    monkeypatch.setattr(command, "RENDEZVOUS_SECONDS", 3)
    node = worker(replace(create_rendezvous(backend, etcd), id="alone"), 0)
    ended = node.end()
    assert ended.code == 1
    assert "RendezvousTimeoutError" in ended.output, ended.output
