"""Today's program takes nothing away from a stack that an earlier one deployed, whichever version that was."""

from __future__ import annotations

import pytest

from tests.integration.graph.intended import unintended
from tests.integration.graph.recordings import UNRELEASED, load, recorded, stacks, versions
from tests.integration.graph.upgrades import harms, unseen
from tests.previews import preview, sample
from tests.shipped import shipped

# A preview is a minute where many run beside it.
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

SAMPLE = sample(shipped())
RECORDED = [(version, stack) for version in versions() for stack in stacks(version)]


def test_every_stack_file_has_a_recording_and_every_recording_a_stack_file() -> None:
    assert stacks(UNRELEASED) == shipped(), "make record-states writes them"
    assert {stack for _, stack in RECORDED} <= set(shipped()), "whose stack file is gone can't be upgraded"


@pytest.mark.parametrize(("version", "stack"), [each for each in RECORDED if each[1] in SAMPLE])
def test_nothing_of_a_deployed_stack_is_replaced_or_deleted(version: str, stack: str) -> None:
    found = harms(load(version, stack), recorded(preview(stack)))
    assert [str(harm) for harm in unintended(found)] == []


@pytest.mark.parametrize("stack", SAMPLE)
def test_a_preview_knows_each_object_of_kubernetes_well_enough_to_be_compared(stack: str) -> None:
    assert unseen(recorded(preview(stack))) == []
