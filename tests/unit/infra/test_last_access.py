"""Whoever destroys a stack keeps the rights in its cluster until nothing is left there.

With the entry gone first, every deletion in the cluster is refused, and the destroy never ends.
"""

from __future__ import annotations

import pytest

from tests.unit.components.recording import Recorded
from tests.unit.infra.whole import shipped

pytestmark = [
    pytest.mark.unit,
    # The SDK imports the old names of what it exports.
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

ENTRY = "aws:eks/accessEntry:AccessEntry"
RIGHTS = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
REMAINS = "pulumi-python:dynamic/drain:Remains"
DRAIN = "pulumi-python:dynamic/drain:Drain"


@pytest.fixture
def dev() -> Recorded:
    return shipped("dev")


def in_the_cluster(recorded: Recorded) -> list[tuple[str, str]]:
    return [(r.type, r.name) for r in recorded.resources if r.type.startswith("kubernetes:")]


def administration(recorded: Recorded) -> set[tuple[str, str]]:
    rights = {(RIGHTS, r.name) for r in recorded.of(RIGHTS)}
    return rights | {(ENTRY, name) for _, name in rights}


def test_everything_in_the_cluster_goes_before_its_administrators_entries(dev: Recorded) -> None:
    inside, needed = in_the_cluster(dev), administration(dev)
    assert len(inside) > 10
    assert len(needed) >= 2
    missing = {item: needed - dev.needs(*item) for item in inside if not needed <= dev.needs(*item)}
    assert missing == {}


def test_the_drain_comes_before_them_too_and_before_every_way_out(dev: Recorded) -> None:
    (drain,) = dev.of(DRAIN)
    needed = dev.needs(DRAIN, drain.name)
    assert administration(dev) <= needed
    ways = [r for r in dev.resources if r.type in ("aws:ec2/route:Route", "aws:ec2/vpcEndpoint:VpcEndpoint")]
    assert ways
    assert {(r.type, r.name) for r in ways} <= needed


def test_what_a_cluster_leaves_is_removed_after_all_of_it_and_before_the_network(dev: Recorded) -> None:
    """EKS can't remove its own group while a left interface is in it, and no subnet goes while one lies there."""
    remains = next((r.type, r.name) for r in dev.resources if r.type == REMAINS)
    for kind in ("eks:index:Cluster", "eks:index:ManagedNodeGroup"):
        assert remains in dev.needs(kind, dev.one(kind).name)
    kinds = {kind for kind, _ in dev.needs(*remains)}
    assert {"aws:ec2/subnet:Subnet", "aws:ec2/securityGroup:SecurityGroup"} <= kinds
    assert "aws:ec2/natGateway:NatGateway" not in kinds, "or the control plane would wait for it"
