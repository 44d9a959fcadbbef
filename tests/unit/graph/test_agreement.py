"""Whether a state is what its preview said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.agreement import contradictions
from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.recordings import Recording, recorded
from tests.unit.graph.invented import POD, SUBNET, an_object, one, previewed, state

pytestmark = pytest.mark.unit


def made(*states: dict[str, Any]) -> Recording:
    return recorded({"resources": list(states)})


def test_a_state_may_say_what_the_preview_did_not_know_and_add_defaults() -> None:
    foreseen = previewed(
        state(SUBNET, inputs={"vpcId": UNKNOWN, "cidrBlock": "c"}),
        an_object(POD, spec={"containers": [{"image": UNKNOWN}, {"image": "b"}]}),
    )
    pod = an_object(POD, spec={"containers": [{"image": "a"}, {"image": "b"}], "restartPolicy": "Never"})
    provider = state("pulumi:providers:aws", "default_7_1_0", inputs={"version": "7.1.0"})
    assert (
        contradictions(
            foreseen, made(state(SUBNET, inputs={"vpcId": "vpc-1", "cidrBlock": "c"}), pod, provider)
        )
        == []
    )


@pytest.mark.parametrize(
    ("real", "line"),
    [
        ({"image": "b"}, 'inputs.spec.containers[0].image is "b", and the preview said "a"'),
        ({}, 'inputs.spec.containers[0].image is null, and the preview said "a"'),
    ],
)
def test_a_value_that_is_not_as_the_preview_said_is_told(real: dict[str, Any], line: str) -> None:
    foreseen = previewed(an_object(POD, spec={"containers": [{"image": "a"}]}))
    found = contradictions(foreseen, made(an_object(POD, spec={"containers": [real]})))
    assert found == [f"{POD}::x: {line}"]


def test_a_list_of_another_length_and_an_option_that_is_gone_are_told() -> None:
    foreseen = previewed({**an_object(POD, spec={"containers": [{}]}), "retainOnDelete": True})
    found = contradictions(foreseen, made(an_object(POD, spec={"containers": [{}, {}]})))
    assert found == [
        f"{POD}::x: inputs.spec.containers is [{{}}, {{}}], and the preview said [{{}}]",
        f"{POD}::x: retainOnDelete is null, and the preview said true",
    ]


def test_a_resource_that_one_of_the_two_lacks_is_told() -> None:
    assert contradictions(one(SUBNET, "a"), made(state(SUBNET, "b", inputs={}))) == [
        f"only in the preview: {SUBNET}::a",
        f"only in the state: {SUBNET}::b",
    ]


def test_another_urn_that_a_resource_once_had_is_the_engine_s_own_affair() -> None:
    assert contradictions(previewed({**state(SUBNET, inputs={}), "aliases": ["urn:old"]}), one(SUBNET)) == []
