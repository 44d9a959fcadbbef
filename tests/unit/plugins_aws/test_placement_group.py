"""The life of a placement group in the AWS plugin, against the emulator."""

from __future__ import annotations

import pytest

from local.plugins.provider import DeleteRequest, ReadRequest, UpdateRequest
from tests.unit.emulator import Cloud as Emulator
from tests.unit.plugins_aws.test_lifecycle import Stack

pytestmark = pytest.mark.unit

TOKEN = "aws:ec2/placementGroup:PlacementGroup"


@pytest.fixture(scope="module")
def made() -> Stack:
    """One for all tests: clients are slow to make."""
    return Stack()


@pytest.fixture
def stack(deployer: Emulator, made: Stack) -> Stack:
    return made


def test_a_group_is_made_read_without_drift_changed_and_deleted(stack: Stack) -> None:
    rid, inputs, outputs = stack.make(TOKEN, name="near", strategy="cluster", tags={"a": "b"})
    assert (rid, outputs["placementGroupId"][:3]) == ("near", "pg-")
    assert outputs["arn"].endswith(":placement-group/near")
    assert stack.drift(TOKEN, rid, inputs, outputs) == {}
    changed = stack.checked(TOKEN, {"name": "near", "strategy": "cluster", "tags": {"c": "d"}}, inputs)
    after = stack.provider.update(
        UpdateRequest(
            **stack.who(TOKEN), id=rid, old_inputs=inputs, old_outputs=outputs, inputs=changed, preview=False
        )
    )
    assert after["tags"] == {"c": "d"}
    assert stack.drift(TOKEN, rid, changed, after) == {}
    gone = DeleteRequest(**stack.who(TOKEN), id=rid, inputs=changed, outputs=after)
    stack.provider.delete(gone)
    assert stack.drift(TOKEN, rid, changed, after) is None
    stack.provider.delete(gone)  # what is gone is no error


def test_a_group_that_exists_is_imported_by_its_name(stack: Stack) -> None:
    stack.cloud.client("ec2").create_placement_group(GroupName="theirs", Strategy="cluster")
    found = stack.provider.read(ReadRequest(**stack.who(TOKEN), id="theirs", inputs={}, outputs={}))
    assert found is not None
    assert (found.outputs["name"], found.outputs["strategy"]) == ("theirs", "cluster")


def test_deleted_placement_group_is_reported_as_gone(stack: Stack) -> None:
    rid, inputs, outputs = stack.make(TOKEN, name="near", strategy="cluster")
    stack.cloud.client("ec2").delete_placement_group(GroupName="near")
    assert stack.drift(TOKEN, rid, inputs, outputs) is None
