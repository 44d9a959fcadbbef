"""The table of the world at the start: its nodes, the expected world, and the nodes that differ."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from trainer import consistency
from trainer.consistency import ProcessInfo, describe, show, table
from trainer.world import World, describe_expected

pytestmark = pytest.mark.trainer


def node_processes(node: int, first: int, gpus: int = 4, **changes: Any) -> list[ProcessInfo]:
    fields = {
        "host": f"train-r1-worker-{node}",
        "device": "NVIDIA A10G",
        "python": "3.11.15",
        "torch": "2.15.0+cu132",
        "cuda": "13.2",
        "nccl": "2.30.7",
        "driver": "580.95.05",
        **changes,
    }
    return [ProcessInfo(rank=first + index, node=node, **fields) for index in range(gpus)]


def test_table_of_equal_nodes_has_a_row_each_and_no_mark() -> None:
    processes = node_processes(1, 4) + node_processes(0, 0)
    lines = table(processes, "2 nodes x 4 processes")
    assert lines == [
        "world: expected 2 nodes x 4 processes, found 2 nodes x 4 processes, 8 in all",
        "node  host               devices          python   torch         cuda  nccl    driver",
        "0     train-r1-worker-0  4 x NVIDIA A10G  3.11.15  2.15.0+cu132  13.2  2.30.7  580.95.05",
        "1     train-r1-worker-1  4 x NVIDIA A10G  3.11.15  2.15.0+cu132  13.2  2.30.7  580.95.05",
    ]


def test_table_marks_and_names_nodes_that_differ() -> None:
    processes = (
        node_processes(0, 0)
        + node_processes(1, 4, driver="535.1")
        + node_processes(2, 8, gpus=3)
        + node_processes(3, 11)
    )
    lines = table(processes)
    assert lines[0] == "world: found 4 nodes x 3 and 4 processes, 15 in all"
    assert [line.split("  ")[-1].strip() for line in lines[2:6]] == [
        "580.95.05",
        "535.1*",
        "580.95.05",
        "580.95.05",
    ]
    assert "3 x NVIDIA A10G*" in lines[4]
    assert lines[6] == "warning: * differs from most nodes: node 1, 2"
    assert [line.count("*") for line in lines[2:6]] == [0, 1, 1, 0]


def test_table_counts_processes_of_a_node_that_differ() -> None:
    mixed = [
        *node_processes(0, 0, gpus=2),
        *node_processes(1, 2, gpus=1),
        *node_processes(1, 3, gpus=1, torch="2.14.0"),
    ]
    row = table(mixed)[3]
    assert "1 x 2.15.0+cu132, 1 x 2.14.0*" in row
    assert "2 x NVIDIA A10G " in row


def test_table_of_many_nodes_shows_the_first_and_different_ones() -> None:
    processes = [
        process
        for node in range(64)
        for process in node_processes(node, 8 * node, gpus=8, **({"nccl": "2.29.3"} if node == 40 else {}))
    ]
    lines = table(processes, describe_expected(64, None), longest=16)
    assert lines[0] == "world: expected 64 nodes x any processes, found 64 nodes x 8 processes, 512 in all"
    assert [line.split()[0] for line in lines[2:4]] == ["0", "40"]
    assert lines[4:] == ["and 62 more nodes like most", "warning: * differs from most nodes: node 40"]


def test_process_on_the_cpu_has_no_driver() -> None:
    found = describe(World(rank=3, size=8, local_rank=1, local_size=2, nodes=4), 1, "cpu")
    assert (found.rank, found.node, found.torch) == (3, 1, torch.__version__)
    assert (found.cuda, found.nccl, found.driver) == ("none", "none", "none")
    assert found.device.startswith("CPU ")


def test_show_names_the_processes_without_a_description(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consistency, "WAIT_SECONDS", 0.2)
    store = HashStore()
    store.set("process 2", json.dumps(asdict(node_processes(1, 2, gpus=1)[0])))
    show(store, World(rank=0, size=4, local_rank=0, local_size=2, nodes=2), None, "cpu")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "world: found 2 nodes x 1 processes, 2 in all"
    assert lines[-1] == "warning: not in the table: processes 1, 3, no description within 0.2 s"
