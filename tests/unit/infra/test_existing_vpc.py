"""The whole program in an existing VPC: what it may delete at the end."""

from __future__ import annotations

import pytest

from tests.unit.infra.whole import shipped

pytestmark = pytest.mark.unit

REMAINS = "pulumi-python:dynamic/drain:Remains"


@pytest.mark.parametrize(("name", "vpc"), [("g4dn-existing-vpc", None), ("g4dn", "trainyard-g4dn-id")])
def test_remains_are_searched_only_in_the_stacks_own_vpc(name: str, vpc: str | None) -> None:
    """GuardDuty's endpoint and group belong to an existing VPC's owner (`components.draining.steps.remove_remains`)."""
    found = shipped(name).one(REMAINS).inputs
    assert found.get("vpc") == vpc
