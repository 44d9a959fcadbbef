"""How the workers of one training find each other, and nobody else, as the launcher's PyTorchJobs tell them to."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.integration.trainer.conftest import Start

pytestmark = pytest.mark.trainer

SHORT = ("--steps", "2")
Operator = Callable[[int], list[dict[str, str]]]


def world(output: str) -> str:
    """The line in which a process tells its place."""
    (line,) = re.findall(r"^rank=.*$", output, re.MULTILINE)
    return str(line)


def test_worker_of_the_last_attempt_does_not_join_this_one(start: Start, operator: Operator) -> None:
    master, worker = operator(2)
    told = {"TRAINYARD_EXPECTED_NODES": "2", "TRAINYARD_PROCESSES_PER_NODE": "1"}
    # It is the first to come to the address that the master has had in both of them.
    old = start.fork(*SHORT, **worker, **told, PET_RDZV_ID="r1-0")
    now = {**told, "PET_RDZV_ID": "r1-1", "TRAINYARD_RESTART": "1"}
    nodes = [start.fork(*SHORT, **each, **now) for each in (master, worker)]
    ended = [node.end() for node in nodes]
    assert [node.code for node in ended] == [0, 0], "\n".join(node.output for node in ended)
    for rank, node in enumerate(ended):
        assert world(node.output).startswith(f"rank={rank} world_size=2 nodes=2 ")
        assert world(node.output).endswith(" restart=1")
    old.process.kill()
    assert "rank=" not in old.end().output


def test_elastic_world_has_as_many_nodes_as_workers(start: Start, operator: Operator) -> None:
    """As the operator has it of an elasticPolicy: no master, a range, an address of the first worker."""
    environments = []
    for each in operator(2):
        address = f"{each['PET_MASTER_ADDR']}:{each['PET_MASTER_PORT']}"
        kept = {
            name: value for name, value in each.items() if name in ("PET_NPROC_PER_NODE", "TRAINYARD_DEVICE")
        }
        meeting = {
            "PET_NNODES": "1:2",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": address,
            "PET_RDZV_ID": "r1-0",
            "PET_MAX_RESTARTS": "3",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TRAINYARD_PROCESSES_PER_NODE": "1",
        }
        environments.append({**kept, **meeting})
    nodes = [start.fork(*SHORT, **each) for each in environments]
    ended = [node.end() for node in nodes]
    assert [node.code for node in ended] == [0, 0], "\n".join(node.output for node in ended)
    assert sorted(world(node.output)[:30] for node in ended) == [
        "rank=0 world_size=2 nodes=2 pr",
        "rank=1 world_size=2 nodes=2 pr",
    ]
