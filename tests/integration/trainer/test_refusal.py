"""The table of a refused world shows the processes that join in time."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from trainer import consistency
from trainer.consistency import describe, show
from trainer.world import World

pytestmark = pytest.mark.trainer

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


def test_missing_process_delays_the_table_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistency, "WAIT_SECONDS", 1.0)
    start = time.monotonic()
    lines, ended = show_world([0, 2], monkeypatch)
    assert lines[0].endswith(", 2 in all")
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
