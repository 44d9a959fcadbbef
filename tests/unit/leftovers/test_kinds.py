"""The sweep that deletes and the search that lists know the same tags, although neither may import the other."""

from __future__ import annotations

import pytest

from trainyard.cli import sweep
from trainyard.preflight.leftovers import read_ec2, read_services
from trainyard.preflight.leftovers.search import READERS

pytestmark = pytest.mark.unit


def test_whatever_the_sweep_removes_is_listed_too() -> None:
    listed = {
        "EC2 instance": read_ec2.MACHINES_OF_CLUSTER,
        "network interface": read_ec2.INTERFACES_OF_CLUSTER,
        "load balancer": read_services.LOAD_BALANCERS_OF_CLUSTER,
        "instance profile": read_services.IAM_OF_CLUSTER,
        **{kind.name: kind.of_cluster for kind in read_ec2.KINDS if kind.of_cluster},
    }
    for kind, tags in sweep.TAGS.items():
        assert kind in READERS
        assert set(tags) <= set(listed[kind]), kind


def test_what_is_found_by_a_clusters_tags_and_nobody_elses_deletion_reaches_is_swept() -> None:
    found_by_cluster = {kind.name for kind in read_ec2.KINDS if kind.of_cluster}
    assert found_by_cluster <= set(sweep.TAGS)
    of_kind = {kind.name: set(kind.of_cluster) for kind in read_ec2.KINDS}
    # EKS deletes its own group with the cluster, and the drain what stays of it; `owned` is on that group, too.
    assert of_kind["security group"] - set(sweep.TAGS["security group"]) == {
        read_ec2.OWNED,
        read_ec2.EKS_GROUP,
    }
    assert of_kind["volume"] == set(sweep.TAGS["volume"])
    assert of_kind["launch template"] == set(sweep.TAGS["launch template"])
