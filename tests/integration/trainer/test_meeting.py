"""Two workers of a torchrun job, as their pods start them, meet where it says: through an etcd, or by their ranks."""

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

TRAINS = """
import os, torch, torch.distributed as world
world.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.full((2, 4), 1.0 + world.get_rank())).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weight = model.module.weight.detach()
everyones = [torch.zeros_like(weight) for _ in range(world.get_world_size())]
world.all_gather(everyones, weight)
assert all(torch.equal(each, weight) for each in everyones)
world.barrier()
print("met", os.environ["GROUP_RANK"], world.get_rank(), world.get_world_size(), flush=True)
world.destroy_process_group()
os._exit(0)  # torch's own threads sometimes abort in the interpreter's end
"""
# Where torch keeps its state in an etcd, by backend.
KEPT = {"etcd": "torchelastic/p2p", "etcd-v2": "torch/elastic/rendezvous"}
BEGIN_SECONDS = 60.0
# torch says at which port its workers meet, and listens there seconds later (RendezvousStoreInfo.build in
# torch/distributed/elastic/rendezvous/api.py). In a pod nobody else takes ports; here it may be taken by then.
PORT_TAKEN = "EADDRINUSE"
TIMES = 3
Worker = Callable[..., Node]


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """A server of etcd's former API meanwhile; its host and port."""
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
            until = time.monotonic() + BEGIN_SECONDS
            while not asked(f"http://{client}/health"):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            yield client
        finally:
            server.kill()


def asked(url: str) -> str:
    """What is there, "" for nothing."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.URLError:
        return ""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint


@pytest.fixture
def worker() -> Iterator[Worker]:
    """`worker(meeting, rank, fork=True)`: one that has started; what still runs at the end gets SIGTERM.

    A fork runs torchrun alone, without the shell that is a pod's first process.
    """
    with ExitStack() as stack:

        def begin(meeting: Rendezvous, rank: int, fork: bool = True) -> Node:
            built = build_command("python", ("-c", TRAINS), meeting)
            path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
            variables = environment({**built.environment, "PATH": path})
            words = built.words if fork else wrap_command(built.words)
            words = [kubelets(word, rank) for word in words]
            if fork:
                assert words[0] == "torchrun"
                torchrun = ["-m", "torch.distributed.run", *words[1:]]
                node = Node(ForkedProgram(torchrun, variables))
            else:
                node = Node(new_process(words, variables))
            stack.callback(node.process.wait, BEGIN_SECONDS)
            stack.callback(node.process.terminate)
            return node

        yield begin


def kubelets(word: str, rank: int) -> str:
    """What the kubelet makes of a word."""
    return word.replace(f"$({n.ENV_NODE_RANK})", str(rank)).replace("$$", "$")


def meeting(backend: str, endpoint: str) -> Rendezvous:
    return Rendezvous(
        backend=backend,
        endpoint=endpoint,
        id=f"{backend}-0",
        size=Size(nodes=2, least=2, gpus=1),
        is_external=True,
    )


def ends(nodes: list[Node]) -> list[Ended]:
    """How each ended. Where one fails the others are told to go: torch has them wait for it for half an hour."""
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        codes = [node.process.poll() for node in nodes]
        if any(codes) or None not in codes:
            break
        time.sleep(0.1)
    for node in nodes:
        if node.process.poll() is None:
            node.process.terminate()
    return [node.end() for node in nodes]


def places(nodes: list[Node]) -> list[tuple[str, ...]]:
    """What each says of its place: node, rank and world; all have ended well."""
    ended = ends(nodes)
    assert [each.code for each in ended] == [0, 0], "\n".join(each.output for each in ended)
    found = [re.findall(r"met (\d+) (\d+) (\d+)$", each.output, re.MULTILINE) for each in ended]
    return [each for (each,) in found]


@pytest.mark.parametrize("backend", ETCD)
def test_two_workers_meet_through_an_etcd(backend: str, etcd: str, worker: Worker) -> None:
    for left in reversed(range(TIMES)):
        told = replace(meeting(backend, etcd), id=f"{backend}-{left}")
        nodes = [worker(told, rank) for rank in range(2)]
        try:
            found = places(nodes)
        except AssertionError as error:
            if not left or PORT_TAKEN not in str(error):
                raise
        else:
            break
    # Both are on one machine, and may come in any order.
    assert sorted(found) == [("0", "0", "2"), ("1", "1", "2")]
    assert told.id in asked(f"http://{etcd}/v2/keys/{KEPT[backend]}?recursive=true"), "they met elsewhere"


def test_static_rendezvous_gives_each_node_its_own_rank(
    worker: Worker,
) -> None:
    (port,) = free_ports(1)
    told = meeting(STATIC, f"127.0.0.1:{port}")
    nodes = [worker(told, rank, fork=False) for rank in range(2)]
    assert places(nodes) == [("0", "0", "2"), ("1", "1", "2")]


@pytest.mark.parametrize("backend", ETCD)
def test_worker_that_waits_alone_ends_after_the_set_time(
    backend: str,
    etcd: str,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each backend has a word of its own for it, and leaves out those that it does not know."""
    monkeypatch.setattr(command, "RENDEZVOUS_SECONDS", 3)
    node = worker(replace(meeting(backend, etcd), id="alone"), 0)
    ended = node.end()
    assert ended.code == 1
    assert "RendezvousTimeoutError" in ended.output, ended.output
