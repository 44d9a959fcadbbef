"""Compare the resources of a state with those of its preview."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.agreement import contradictions
from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.recordings import Recording, recorded
from tests.unit.graph.invented import POD, SUBNET, an_object, one, previewed, state


def state_of(*states: dict[str, Any]) -> Recording:
    return recorded({"resources": list(states)})


def test_contradictions_state_fills_unknowns_finds_none() -> None:
    preview = previewed(
        state(SUBNET, inputs={"vpcId": UNKNOWN, "cidrBlock": "c"}),
        an_object(POD, spec={"containers": [{"image": UNKNOWN}, {"image": "b"}]}),
    )
    pod = an_object(POD, spec={"containers": [{"image": "a"}, {"image": "b"}], "restartPolicy": "Never"})
    provider = state("pulumi:providers:aws", "default_7_1_0", inputs={"version": "7.1.0"})
    assert (
        contradictions(
            preview, state_of(state(SUBNET, inputs={"vpcId": "vpc-1", "cidrBlock": "c"}), pod, provider)
        )
        == []
    )


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({"image": "b"}, 'inputs.spec.containers[0].image is "b", and the preview said "a"'),
        ({}, 'inputs.spec.containers[0].image is null, and the preview said "a"'),
    ],
)
def test_contradictions_changed_value_is_reported(container: dict[str, Any], line: str) -> None:
    preview = previewed(an_object(POD, spec={"containers": [{"image": "a"}]}))
    found = contradictions(preview, state_of(an_object(POD, spec={"containers": [container]})))
    assert found == [f"{POD}::x: {line}"]


def test_contradictions_changed_list_and_option_are_reported() -> None:
    preview = previewed({**an_object(POD, spec={"containers": [{}]}), "retainOnDelete": True})
    found = contradictions(preview, state_of(an_object(POD, spec={"containers": [{}, {}]})))
    assert found == [
        f"{POD}::x: inputs.spec.containers is [{{}}, {{}}], and the preview said [{{}}]",
        f"{POD}::x: retainOnDelete is null, and the preview said true",
    ]


def test_contradictions_resource_on_one_side_is_reported() -> None:
    assert contradictions(one(SUBNET, "a"), state_of(state(SUBNET, "b", inputs={}))) == [
        f"only in the preview: {SUBNET}::a",
        f"only in the state: {SUBNET}::b",
    ]


def test_contradictions_alias_of_previous_urn_is_ignored() -> None:
    assert contradictions(previewed({**state(SUBNET, inputs={}), "aliases": ["urn:old"]}), one(SUBNET)) == []
