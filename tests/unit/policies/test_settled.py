"""A preview and the state after its update, judged together."""

from __future__ import annotations

import pytest

from tests.integration.policy.settled import unsettled
from tests.unit.policies.building import made
from trainyard.policies.model import UNKNOWN, Stack

pytestmark = pytest.mark.unit

SUBNET = "aws:ec2/subnet:Subnet"
LATER = Stack([made(SUBNET, "a", mapPublicIpOnLaunch=UNKNOWN)])


def test_what_the_state_decides_is_settled() -> None:
    assert unsettled(LATER, Stack([made(SUBNET, "a", mapPublicIpOnLaunch=False)])) == []


def test_what_the_state_violates_is_told() -> None:
    (line,) = unsettled(LATER, Stack([made(SUBNET, "a", mapPublicIpOnLaunch=True)]))
    assert line.startswith("violated: aws:ec2/subnet:Subnet a: mapPublicIpOnLaunch is true")


def test_what_was_never_made_is_never_decided() -> None:
    (line,) = unsettled(LATER, Stack([]))
    assert line.startswith("never decided: aws:ec2/subnet:Subnet a")


def test_what_the_state_does_not_know_is_told() -> None:
    assert [line.partition(":")[0] for line in unsettled(LATER, LATER)] == [
        "never decided",
        "undecided after the update",
    ]
