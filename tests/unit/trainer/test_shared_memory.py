"""Whether copies fit into /dev/shm: all processes of a machine, and all machines alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.checkpoint import engines
from trainer.checkpoint.engines import GIB, Room, free, needed, too_small

pytestmark = pytest.mark.unit


def test_every_process_of_a_machine_needs_whole_pages_for_every_tensor() -> None:
    assert needed([], 8) == 0
    assert needed([1, 4096, 4097], 1) == 4096 + 4096 + 8192
    assert needed([1, 4096, 4097], 8) == 8 * 16384


def test_what_fits_exactly_has_room() -> None:
    assert too_small([Room(100, 100), Room(200, 1)]) is None


def test_one_machine_without_room_is_enough_and_the_worst_is_told() -> None:
    """gpt-124M's weights and two moments on eight GPUs, in the 8 GiB of a pod."""
    state = needed([3 * 4 * 124_439_808], 8)
    reason = too_small([Room(64 * GIB, state), Room(10 * GIB, state), Room(8 * GIB, state)])
    assert reason is not None
    assert reason.startswith(
        "/dev/shm has 8.00 GiB free, the copies of the processes of a node need 11.13 GiB. Threads write"
    )
    assert "training.sharedMemory" in reason
    assert "--shm-size" in reason
    assert too_small([Room(64 * GIB, state)]) is None


def test_where_there_is_no_shared_memory_none_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engines, "PLACE", tmp_path)
    assert free() > 0
    monkeypatch.setattr(engines, "PLACE", tmp_path / "none")
    assert free() == 0
