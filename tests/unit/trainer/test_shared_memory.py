"""Whether copies fit into /dev/shm: all processes of a node, and all nodes alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.checkpoint import save

pytestmark = pytest.mark.long


def test_needed_shared_memory_counts_whole_pages_per_process() -> None:
    tensors = {str(size): torch.zeros(size, dtype=torch.uint8) for size in (1, 4096, 4097)}
    state = {**tensors, "view": tensors["4097"][1:]}
    assert save.needed_shared_memory({}, 8) == 0
    assert save.needed_shared_memory(state, 8) == 8 * (4096 + 4096 + 8192)


def test_node_without_room_is_enough_and_the_worst_is_named() -> None:
    """gpt-124M's weights and two moments on eight GPUs, in the 8 GiB of a pod."""
    needed = 8 * 3 * 4 * 124_439_808
    assert save.too_small([(needed, needed), (200, 1)]) is None
    reason = save.too_small([(64 * save.GIB, needed), (10 * save.GIB, needed), (8 * save.GIB, needed)])
    assert reason is not None
    assert reason.startswith(
        "/dev/shm has 8.00 GiB free, the copies of the processes of a node need 11.13 GiB. Threads write"
    )
    assert "training.sharedMemory" in reason
    assert "--shm-size" in reason


def test_where_there_is_no_shared_memory_none_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(save, "SHARED_MEMORY", tmp_path)
    assert save.free_shared_memory() > 0
    monkeypatch.setattr(save, "SHARED_MEMORY", tmp_path / "none")
    assert save.free_shared_memory() == 0
