"""The whole program in a VPC that is given: what it may take away at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from components import operators
from infra import stack
from tests.unit.components.recording import deploy
from tests.unit.infra.test_stack import OPERATOR_OBJECTS, settings_of, small_checkout

pytestmark = [
    pytest.mark.unit,
    # The SDK imports the old names of what it exports.
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

REMAINS = "pulumi-python:dynamic/drain:Remains"


@pytest.fixture(scope="module", autouse=True)
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A small checkout, so that image digests don't read this one."""
    root = small_checkout(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "ROOT", root)
        patch.setattr(operators, "render", lambda source: OPERATOR_OBJECTS)
        yield


@pytest.mark.parametrize(("name", "vpc"), [("g4dn-existing-vpc", None), ("g4dn", "trainyard-g4dn-id")])
def test_what_searches_a_vpc_for_remains_is_told_of_the_stacks_own_alone(name: str, vpc: str | None) -> None:
    """In a given VPC GuardDuty's endpoint and group are its owner's (`components.draining.remains`)."""
    found = deploy(lambda: stack.deploy(settings_of(name))).one(REMAINS).inputs
    assert found.get("vpc") == vpc
