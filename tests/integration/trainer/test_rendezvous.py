"""Rendezvous of the workers of one run, with the variables of the launcher's PyTorchJobs."""

from __future__ import annotations

import re

import pytest

from tests.integration.trainer.conftest import Operator, Start

pytestmark = pytest.mark.trainer

SHORT = ("--steps", "2")


def world_line(output: str) -> str:
    """Return the line with a process's rank and world."""
    (line,) = re.findall(r"^rank=.*$", output, re.MULTILINE)
    return str(line)


def test_worker_of_the_last_attempt_does_not_join_the_next(start: Start, operator: Operator) -> None:
    master, worker = operator(2)
    expected_world = {"TRAINYARD_EXPECTED_NODES": "2", "TRAINYARD_PROCESSES_PER_NODE": "1"}
    # The stale worker joins first: the master's address is the same in both attempts.
    stale = start.fork(*SHORT, **worker, **expected_world, PET_RDZV_ID="r1-0")
    environ = {**expected_world, "PET_RDZV_ID": "r1-1", "TRAINYARD_RESTART": "1"}
    nodes = [start.fork(*SHORT, **each, **environ) for each in (master, worker)]
    ended = [node.end() for node in nodes]
    assert [node.code for node in ended] == [0, 0], "\n".join(node.output for node in ended)
    for rank, node in enumerate(ended):
        assert world_line(node.output).startswith(f"rank={rank} world_size=2 nodes=2 ")
        assert world_line(node.output).endswith(" restart=1")
    stale.process.kill()
    assert "rank=" not in stale.end().output


def test_elastic_world_has_as_many_nodes_as_workers(start: Start, operator: Operator) -> None:
    """As the operator configures an elasticPolicy: no master, a range of nodes, the first worker's address."""
    environments = []
    for each in operator(2):
        address = f"{each['PET_MASTER_ADDR']}:{each['PET_MASTER_PORT']}"
        settings = {
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
        environments.append({**settings, **meeting})
    nodes = [start.fork(*SHORT, **each) for each in environments]
    ended = [node.end() for node in nodes]
    assert [node.code for node in ended] == [0, 0], "\n".join(node.output for node in ended)
    assert sorted(world_line(node.output)[:30] for node in ended) == [
        "rank=0 world_size=2 nodes=2 pr",
        "rank=1 world_size=2 nodes=2 pr",
    ]
