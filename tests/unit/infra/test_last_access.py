"""`destroy` deletes the administrators' access entries after everything in the cluster.

Without the entry, the API server refuses every deletion, and the destroy never ends.
"""

from __future__ import annotations

import pytest

from tests.unit.components.recording import Recorded
from tests.unit.infra.whole import shipped

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


def test_cluster_objects_are_deleted_before_access_entries(dev: Recorded) -> None:
    inside, needed = in_the_cluster(dev), administration(dev)
    assert len(inside) > 10
    assert len(needed) >= 2
    missing = {item: needed - dev.needs(*item) for item in inside if not needed <= dev.needs(*item)}
    assert missing == {}


def test_drain_runs_before_access_entries_and_egress_go(dev: Recorded) -> None:
    (drain,) = dev.of(DRAIN)
    needed = dev.needs(DRAIN, drain.name)
    assert administration(dev) <= needed
    ways = [r for r in dev.resources if r.type in ("aws:ec2/route:Route", "aws:ec2/vpcEndpoint:VpcEndpoint")]
    assert ways
    assert {(r.type, r.name) for r in ways} <= needed


def test_cluster_remains_are_deleted_between_cluster_and_network(dev: Recorded) -> None:
    """A leftover network interface blocks the deletion of EKS's security group and of its subnet."""
    remains = next((r.type, r.name) for r in dev.resources if r.type == REMAINS)
    for kind in ("eks:index:Cluster", "eks:index:ManagedNodeGroup"):
        assert remains in dev.needs(kind, dev.one(kind).name)
    kinds = {kind for kind, _ in dev.needs(*remains)}
    assert {"aws:ec2/subnet:Subnet", "aws:ec2/securityGroup:SecurityGroup"} <= kinds
    assert "aws:ec2/natGateway:NatGateway" not in kinds, "or the control plane would wait for it"
