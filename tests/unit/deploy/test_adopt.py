"""What a killed engine was creating is found again and goes into the state once."""

from __future__ import annotations

import pytest

from local.deploy.adopt import identities, with_adopted

pytestmark = pytest.mark.unit

URN = "urn:pulumi:local::trainyard::aws:ecr/repository:Repository::launcher"


def state() -> dict[str, object]:
    resource = {
        "urn": URN,
        "type": "aws:ecr/repository:Repository",
        "inputs": {"name": "trainyard-local/launcher"},
    }
    return {
        "resources": [{"urn": "stack"}],
        "pending_operations": [{"type": "creating", "resource": resource}],
    }


def test_a_named_resource_is_known_by_its_name() -> None:
    assert dict(identities(state(), "123456789012", "us-west-2")) == {URN: "trainyard-local/launcher"}


def test_a_resource_that_the_state_names_already_is_left_alone() -> None:
    known = {**state(), "resources": [{"urn": "other", "id": "trainyard-local/launcher"}]}
    assert dict(identities(known, "123456789012", "us-west-2")) == {}


def test_the_adopted_resource_comes_last_and_is_pending_no_more() -> None:
    edited = with_adopted({"version": 3, "deployment": state()}, {URN: "trainyard-local/launcher"})[
        "deployment"
    ]
    assert edited["pending_operations"] == []
    assert [each["urn"] for each in edited["resources"]] == ["stack", URN]
    assert edited["resources"][-1]["id"] == "trainyard-local/launcher"
