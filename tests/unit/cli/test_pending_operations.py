"""What a killed engine was creating is found again and goes into the state once."""

from __future__ import annotations

from typing import Any

from trainyard.cli.pending_operations import identities, with_adopted

KIND = "aws:ecr/repository:Repository"
URN = f"urn:pulumi:local::trainyard::{KIND}::launcher"


def found(deployment: dict[str, Any]) -> dict[str, str]:
    return dict(identities(deployment, "123456789012", "us-west-2", lambda _namespace, _name: False))


def state() -> dict[str, Any]:
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
    assert found(state()) == {URN: "trainyard-local/launcher"}


def test_a_resource_that_the_state_names_already_is_left_alone() -> None:
    known = {**state(), "resources": [{"urn": "other", "type": KIND, "id": "trainyard-local/launcher"}]}
    assert found(known) == {}


def test_the_adopted_resource_comes_last_and_is_pending_no_more() -> None:
    edited = with_adopted({"version": 3, "deployment": state()}, {URN: "trainyard-local/launcher"})[
        "deployment"
    ]
    assert edited["pending_operations"] == []
    assert [each["urn"] for each in edited["resources"]] == ["stack", URN]
    assert edited["resources"][-1]["id"] == "trainyard-local/launcher"


def test_an_id_of_several_inputs_is_put_together_when_all_are_known() -> None:
    resource = {"urn": URN, "type": "aws:eks/accessEntry:AccessEntry", "inputs": {"clusterName": "mine"}}
    deployment = {"resources": [], "pending_operations": [{"type": "creating", "resource": resource}]}
    assert found(deployment) == {}
    resource["inputs"] = {"clusterName": "mine", "principalArn": "arn:aws:iam::1:role/r"}
    assert found(deployment) == {URN: "mine:arn:aws:iam::1:role/r"}
