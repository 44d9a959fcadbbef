"""Today's program takes nothing away from a stack that an earlier one deployed."""

from __future__ import annotations

import pytest

from tests.graph.upgrades import STATES, harms, load, recorded
from tests.previews import preview, shipped

# A preview is a minute where many run beside it.
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]


def test_every_stack_file_has_a_recording_and_every_recording_a_stack_file() -> None:
    assert sorted(path.stem for path in STATES.glob("*.json")) == shipped(), "make record-states writes them"


@pytest.mark.parametrize("stack", shipped())
def test_nothing_of_a_deployed_stack_is_replaced_or_deleted(stack: str) -> None:
    assert [str(harm) for harm in harms(load(stack), recorded(preview(stack)))] == []
