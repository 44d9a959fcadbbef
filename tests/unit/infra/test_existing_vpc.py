"""The whole program in a VPC that is given: what it may take away at the end."""

from __future__ import annotations

import pytest

from tests.unit.infra.whole import shipped

pytestmark = [
    pytest.mark.unit,
    # The SDK imports the old names of what it exports.
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

REMAINS = "pulumi-python:dynamic/drain:Remains"


@pytest.mark.parametrize(("name", "vpc"), [("g4dn-existing-vpc", None), ("g4dn", "trainyard-g4dn-id")])
def test_what_searches_a_vpc_for_remains_is_told_of_the_stacks_own_alone(name: str, vpc: str | None) -> None:
    """In a given VPC GuardDuty's endpoint and group are its owner's (`components.draining.steps.remove_remains`)."""
    found = shipped(name).one(REMAINS).inputs
    assert found.get("vpc") == vpc
