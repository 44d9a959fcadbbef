from __future__ import annotations

import pytest

from local.nodes import times

pytestmark = pytest.mark.unit


def test_a_time_survives_being_written_and_read() -> None:
    assert times.epoch(times.timestamp(1_800_000_000.0)) == 1_800_000_000.0
