"""The table of the world at the start: its nodes, the expected world, and the nodes that differ or are missing."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
    lines = table(processes, describe_expected(64, None))
    assert lines[0] == "world: expected 64 nodes x any processes, found 64 nodes x 8 processes, 512 in all"
    assert [line.split()[0] for line in lines[2:4]] == ["0", "40"]
    assert lines[4:] == ["and 62 more nodes like most", "warning: * differs from most nodes: node 40"]


def test_process_on_the_cpu_has_no_driver() -> None:
    found = describe(World(rank=3, size=8, local_rank=1, local_size=2, nodes=4), 1, "cpu")
    assert (found.rank, found.node, found.torch) == (3, 1, torch.__version__)
    assert (found.cuda, found.nccl, found.driver) == ("none", "none", "none")
    assert found.device.startswith("CPU ")


EXPECTED = "4 nodes x 1 processes"


def world(rank: int, size: int = 3) -> World:
    return World(rank=rank, size=size, local_rank=0, local_size=1, nodes=size)


def show_world(ranks: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[int, float]]:
    """Show the world of three nodes when these ranks join; return the log, and the end time of each rank."""
    lines: list[str] = []
    ended: dict[int, float] = {}
    monkeypatch.setattr(consistency, "log_line", lines.append)
    monkeypatch.setenv("GROUP_RANK", "0")
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))  # type: ignore[attr-defined]

    def show_one(rank: int) -> None:
        show(store.clone(), world(rank), EXPECTED, "cpu", is_refused=True)
        ended[rank] = time.monotonic()

    threads = [threading.Thread(target=show_one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return lines, ended


def test_rank_0_shows_all_processes_and_the_others_log_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, ended = show_world([2, 1, 0], monkeypatch)
    assert lines[0].startswith("world: expected 4 nodes x 1 processes, found ")
    assert lines[0].endswith(", 3 in all")
    assert set(ended) == {0, 1, 2}


def test_missing_process_is_named_and_delays_the_table_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistency, "WAIT_SECONDS", 1.0)
    start = time.monotonic()
    lines, ended = show_world([0, 2], monkeypatch)
    assert lines[0].endswith(", 2 in all")
    assert lines[-1] == "warning: not in the table: process 1, no description within 1 s"
    assert ended[0] - start < 15


def test_other_ranks_wait_until_the_table_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of them exits earlier, torchrun stops rank 0."""
    order: list[str] = []
    log_line = consistency.table

    def slow(*words: object) -> list[str]:
        time.sleep(0.5)
        order.append("shown")
        return log_line(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(consistency, "table", slow)
    start = time.monotonic()
    _, ended = show_world([0, 1, 2], monkeypatch)
    assert order == ["shown"]
    assert min(ended.values()) >= start + 0.5


def test_process_beyond_the_gpus_of_its_node_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    monkeypatch.setattr(consistency, "driver_version", lambda _path: "580")
    places = [World(rank=rank, size=2, local_rank=rank, local_size=2, nodes=1) for rank in range(2)]
    assert [describe(place, 0, "cuda").device for place in places] == ["GPU 0", "none"]
