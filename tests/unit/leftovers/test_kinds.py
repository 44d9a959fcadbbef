"""The sweep that deletes and the search that lists have the same tags, although neither may import the other."""

from __future__ import annotations

from trainyard.cli import sweep
from trainyard.preflight.leftovers.leftover import CLUSTER_TAGS, OWNED
from trainyard.preflight.leftovers.search import READERS

# EKS and IAM delete these: the group with the cluster, the others with Pulumi's resources.
NOT_SWEPT = {"Auto Scaling group", "IAM role", "IAM policy", "OIDC provider"}


def test_search_lists_whatever_the_sweep_deletes() -> None:
    for kind, tags in sweep.TAGS.items():
        assert kind in READERS
        assert set(tags) <= set(CLUSTER_TAGS[kind]), kind


def test_sweep_deletes_whatever_is_found_by_the_clusters_tags() -> None:
    assert set(CLUSTER_TAGS) - set(sweep.TAGS) == NOT_SWEPT
    for kind, tags in sweep.TAGS.items():
        # EKS deletes its own group with the cluster, which has both of these tags.
        more = {OWNED, "aws:eks:cluster-name"} if kind == "security group" else set()
        assert set(CLUSTER_TAGS[kind]) - set(tags) == more, kind
