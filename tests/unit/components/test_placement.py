"""Placement groups of pools."""

from __future__ import annotations

from components.documents.pool import Pool, node_class
from components.pools import Placement, PlacementArgs
from tests.unit.components.pools import CPU, pool
from tests.unit.components.recording import MARKS, Recorded, deploy

pytestmark = pytest.mark.unit

GROUP = "aws:ec2/placementGroup:PlacementGroup"
OWN = pool(name="p4d", placement_group="trainyard-p4d", makes_placement_group=True)


def made(*pools: Pool) -> Recorded:
    return deploy(lambda: Placement("placement", PlacementArgs(pools=pools, tags={"a": "b"})))


def test_a_group_is_made_where_a_pool_asks_for_one() -> None:
    group = made(OWN, CPU).one(GROUP)
    assert group.inputs == {"name": "trainyard-p4d", "strategy": "cluster", "tags": {"a": "b"}}


def test_a_group_of_somebody_else_is_only_named() -> None:
    given = pool(placement_group="theirs")
    assert made(given).of(GROUP) == []
    spec = node_class(given, cluster="c", ami="a", role="r", subnet_id="s", tags={})
    assert spec["placementGroupSelector"] == {"name": "theirs"}


def test_pools_that_share_a_group_make_it_once() -> None:
    other = pool(name="more", placement_group="trainyard-p4d", makes_placement_group=True)
    assert len(made(OWN, other).of(GROUP)) == 1
