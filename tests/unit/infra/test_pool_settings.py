"""Pools of a stack file: EFA, reservations, placement groups, warm nodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from components.documents import instance_types
from infra.settings import read
from tests.unit.infra.changing import NOW, POOL, mistakes, settings, stack_file, with_, with_pool

ODCR = {"purchase": "reserved", "capacityReservationIds": ["cr-0123456789abcdef0"]}
SNAPSHOT = {"dataSnapshotId": "snap-0123456789abcdef0"}
BLOCK = {**ODCR, "reservationType": "capacity-block", "reservationEnds": "2027-01-31T11:30:00Z"}


@pytest.mark.parametrize(
    ("type_", "given", "efa", "policy"),
    [
        ("p5.48xlarge", None, 32, "ip"),
        ("p5.48xlarge", "bandwidth", 32, "bandwidth"),
        ("p5.48xlarge", "none", 0, "none"),
        ("g5.xlarge", None, 0, "none"),
        ("m5.large", None, 0, "none"),
        ("trn1.32xlarge", None, 8, "ip"),
        ("p6-b300.48xlarge", None, 16, "ip"),
        ("g7e.24xlarge", None, 2, "ip"),
        ("gr6.4xlarge", None, 0, "none"),
    ],
)
def test_efa_type_uses_all_interfaces_by_default(
    type_: str, given: str | None, efa: int, policy: str
) -> None:
    change: dict[str, Any] = {"instanceType": type_} | ({"efa": given} if given else {})
    (pool,) = settings(with_pool(**change)).pools
    assert (pool.efa, pool.efa_policy) == (efa, policy)


@pytest.mark.parametrize(
    ("type_", "policy", "own", "given"),
    [
        # Existing cluster: a primary and a spare interface with fifty addresses each.
        ("g5.12xlarge", "ip", 15, 100),
        # The first card has room for one beside the EFA.
        ("p5.48xlarge", "ip", 15, 50),
        # Seven more groups of four cards, each group with its own address.
        ("p5.48xlarge", "bandwidth", 22, 57),
        ("p4d.24xlarge", "ip", 15, 100),
        ("p4d.24xlarge", "bandwidth", 18, 103),
        # Sixteen more cards; the first one has no EFA.
        ("p6-b300.48xlarge", "ip", 15, 100),
        ("p6-b300.48xlarge", "bandwidth", 31, 116),
        # Two interfaces of ten, as one has nine for pods.
        ("m5.large", "none", 16, 20),
    ],
)
def test_node_addresses_depend_on_new_or_existing_cluster(
    type_: str, policy: str, own: int, given: int
) -> None:
    (pool,) = settings(with_pool(instanceType=type_, efa=policy)).pools
    assert (pool.addresses(own_cni=True), pool.addresses(own_cni=False)) == (own, given)


def test_every_type_has_interfaces_for_its_pods() -> None:
    for facts in instance_types.TYPES.values():
        assert facts.interfaces >= (2 if facts.efa else 1), facts.name
        assert facts.addresses >= 10, facts.name
        assert facts.efa % facts.cards_per_ip_group == 0, facts.name


def test_reservation_is_read_with_end_and_fallback() -> None:
    (pool,) = settings(with_pool(**{**BLOCK, "onDemandFallback": True})).pools
    assert pool.reservation_ends == "2027-01-31T11:30:00+00:00"
    assert pool.capacity_types == ["reserved", "on-demand"]
    (pool,) = settings(with_pool(**ODCR)).pools
    assert (pool.reservation_type, pool.reservation_ends) == ("odcr", None)
    assert pool.capacity_types == ["reserved"]


def test_capacity_block_end_is_limited_and_odcr_end_is_free() -> None:
    """The latest end of a block that is bought now, or no end, so that p5 previews on any day."""
    for ends in ("2027-07-17T12:00:00Z", None):
        (pool,) = settings(with_pool(**{**BLOCK, "reservationEnds": ends})).pools
        assert (pool.reservation_ends is None) == (ends is None)
    (pool,) = settings(with_pool(**ODCR, reservationEnds="2040-01-01T00:00:00Z")).pools
    assert pool.reservation_ends == "2040-01-01T00:00:00+00:00"


@pytest.mark.parametrize("begins", ["2027-01-16T12:00:00Z", "2026-11-01T11:30:00+02:00", None])
def test_reservation_begin_may_be_future_past_or_absent(begins: str | None) -> None:
    """The latest begin of a block that is bought now, a past begin, or none."""
    (pool,) = settings(with_pool(**BLOCK, reservationBegins=begins)).pools
    expected = None if begins is None else datetime.fromisoformat(begins).astimezone(UTC).isoformat()
    assert pool.reservation_begins == expected
    (pool,) = settings(with_pool(**ODCR, reservationBegins="2027-03-01T00:00:00Z")).pools
    assert pool.reservation_begins == "2027-03-01T00:00:00+00:00"


@hypothesis_settings(max_examples=100)
@given(
    st.datetimes(datetime(2026, 6, 1), datetime(2027, 9, 1)),
    st.datetimes(datetime(2026, 6, 1), datetime(2027, 9, 1)),
)
@pytest.mark.long
def test_capacity_block_with_possible_times_is_valid(begin: datetime, end: datetime) -> None:
    """Any begin within eight weeks, and a later end in the future that a block can have."""
    begin, end = begin.replace(tzinfo=UTC), end.replace(tzinfo=UTC)
    times = {"reservationBegins": begin.isoformat(), "reservationEnds": end.isoformat()}
    config = with_pool(**{**BLOCK, **times})
    latest = NOW + timedelta(weeks=8)
    right = begin <= latest and begin < end and NOW < end <= latest + timedelta(days=182)
    if right:
        (pool,) = settings(config).pools
        assert (pool.reservation_begins, pool.reservation_ends) == (begin.isoformat(), end.isoformat())
    else:
        keys = {line.split(": ")[0].rpartition(".")[2] for line in mistakes(config)}
        assert keys <= {"reservationBegins", "reservationEnds"}


@pytest.mark.parametrize("year", [2026, 2030, 2060])
def test_shipped_capacity_block_is_valid_in_any_year(year: int) -> None:
    (pool,) = read("p5", stack_file("p5"), datetime(year, 6, 1, tzinfo=UTC)).pools
    assert pool.reservation_type == "capacity-block"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"instanceType": "g5.xlarge", "efa": "ip"},
            "pools[0].efa: 'ip' needs EFA and g5.xlarge has none; it must be",
        ),
        ({"efa": "most"}, "pools[0].efa: 'most' is not known"),
        ({"efa": True}, "pools[0].efa: true is a boolean; it must be one of none, ip, bandwidth"),
        ({"warmNodes": 5}, "pools[0].warmNodes: 5 is more than maxNodes; it must be at most 4"),
        (
            {"dataSnapshotId": "snap-1"},
            "dataSnapshotId: 'snap-1' is invalid; it must be an id of 8 or 17",
        ),
        ({"dataSnapshotId": 1}, "dataSnapshotId: 1 is a whole number; it must be an id of 8 or 17"),
        ({"dataVolumeGiB": 300}, "dataVolumeGiB: 300 is given without dataSnapshotId; it is the disk of a"),
        ({**SNAPSHOT, "dataVolumeGiB": 0}, "dataVolumeGiB: 0 is out of range; it must be a whole number of"),
        ({**SNAPSHOT, "dataVolumeGiB": 16385}, "of GiB of at least 1 and at most 16384"),
        ({"purchase": "reserved"}, "capacityReservationIds: is missing; purchase: reserved needs the ids"),
        ({"purchase": "reserved", "capacityReservationIds": []}, "capacityReservationIds: is missing"),
        ({**ODCR, "capacityReservationIds": ["cr-1"]}, "capacityReservationIds[0]: 'cr-1' is invalid"),
        (
            {**ODCR, "capacityReservationIds": ["cr-0123456789abcdef"]},
            "'cr-0123456789abcdef' is invalid; it must be an id of 8 or 17 digits (0-9, a-f), such as cr-",
        ),
        (
            {**ODCR, "capacityReservationIds": 2 * ["cr-0123456789abcdef0"]},
            "'cr-0123456789abcdef0' is listed twice. Remove one.",
        ),
        ({"onDemandFallback": True}, "onDemandFallback: is given, but purchase is on-demand"),
        ({"purchase": "spot", "reservationType": "odcr"}, "reservationType: is given, but purchase is spot"),
        (
            {**BLOCK, "reservationEnds": "2027-07-17T12:00:01Z"},
            "reservationEnds: '2027-07-17T12:00:01Z' is too far: a capacity block begins at most 8 weeks from now and"
            " lasts at most 182 days, so that none ends after 2027-07-17; it must be the end of the block",
        ),
        (
            {**BLOCK, "reservationEnds": "2026-11-21T11:59:59Z"},
            "'2026-11-21T11:59:59Z' is past; it must be in the",
        ),
        (
            {**BLOCK, "reservationEnds": "2026-11-21T13:30:00+02:00"},
            "reservationEnds: '2026-11-21T13:30:00+02:00' is",
        ),
        ({**BLOCK, "reservationEnds": "2027-01-31T11:30:00"}, "must be a time with its zone"),
        ({**BLOCK, "reservationEnds": "next year"}, "reservationEnds: 'next year' is invalid"),
        (
            {**BLOCK, "reservationBegins": "2027-01-16T12:00:01Z"},
            "reservationBegins: '2027-01-16T12:00:01Z' is too far: a capacity block begins at most 8 weeks from now,"
            " which is 2027-01-16; it must be the begin of the block",
        ),
        (
            {**BLOCK, "reservationEnds": "2026-12-01T00:00:00Z", "reservationBegins": "2026-12-01T00:00:00Z"},
            "reservationBegins: '2026-12-01T00:00:00Z' is not before reservationEnds ('2026-12-01T00:00:00Z')",
        ),
        (
            {**BLOCK, "reservationBegins": "2026-12-01T00:00:00"},
            "reservationBegins: '2026-12-01T00:00:00' is invalid",
        ),
        (
            {"reservationBegins": "2026-12-01T00:00:00Z"},
            "reservationBegins: is given, but purchase is on-demand",
        ),
        ({**BLOCK, "placementGroup": True}, "placementGroup: true is not for capacity blocks"),
        ({**ODCR, "placementGroup": True}, "placementGroup: true is not the group of the reservation"),
        (
            {**ODCR, "placementGroup": "a", "placementGroupOfReservation": "b"},
            "placementGroup: 'a' is not the group of the reservation, so that no node could start; it must be b",
        ),
        ({**ODCR, "placementGroupOfReservation": "b"}, "placementGroup: is missing; the reservation lies in"),
        (
            {"placementGroupOfReservation": "b"},
            "placementGroupOfReservation: is given, but purchase is on-demand",
        ),
        (
            {"placementGroup": 3},
            "placementGroup: 3 is a whole number; it must be true, or the name of an existing",
        ),
    ],
)
def test_wrong_pool_is_reported_once(change: dict[str, Any], message: str) -> None:
    lines = mistakes(with_pool(**change))
    assert any(message in line for line in lines), lines
    assert len(lines) == 1, "one mistake, one line"
    assert lines[0].startswith("trainyard:pools[0].")


def test_pools_in_two_zones_cannot_share_a_placement_group() -> None:
    here = {**POOL, "placementGroup": "theirs"}
    there = {**POOL, "name": "there", "zone": "us-west-2a", "placementGroup": "theirs"}
    (line,) = mistakes(with_({"pools": [here, there]}))
    assert line == (
        "trainyard:pools[1].placementGroup: 'theirs' is also in pool 'small' (us-west-2b), and this pool is in"
        " us-west-2a. A placement group is in one zone."
    )
    made = {**there, "placementGroup": "trainyard-test-small"}
    (line,) = mistakes(with_({"pools": [{**POOL, "placementGroup": True}, made]}))
    assert "'trainyard-test-small' is also in pool 'small' (us-west-2b)" in line
    assert len(settings(with_({"pools": [here, {**there, "zone": "us-west-2b"}]})).pools) == 2
    assert (
        len(
            settings(
                with_({"pools": [{**here, "placementGroup": False}, {**there, "placementGroup": False}]})
            ).pools
        )
        == 2
    )


def test_placement_group_is_created_or_existing() -> None:
    (made,) = settings(with_pool(placementGroup=True)).pools
    assert (made.placement_group, made.makes_placement_group) == ("trainyard-test-small", True)
    (named,) = settings(with_pool(placementGroup="theirs")).pools
    assert (named.placement_group, named.makes_placement_group) == ("theirs", False)
    (none,) = settings(with_pool(placementGroup=False)).pools
    assert (none.placement_group, none.makes_placement_group) == (None, False)
    around = {**ODCR, "placementGroup": "theirs", "placementGroupOfReservation": "theirs"}
    (reserved,) = settings(with_pool(**around)).pools
    assert reserved.placement_group == "theirs"


@pytest.mark.parametrize("other", [{"zone": "us-west-2a"}, {"instanceType": "g5.24xlarge"}])
def test_reservation_with_two_types_or_zones_is_refused(other: dict[str, Any]) -> None:
    first = {**POOL, **ODCR}
    (line,) = mistakes(with_({"pools": [first, {**first, "name": "other", **other}]}))
    assert "pools[1].capacityReservationIds: 'cr-0123456789abcdef0' is also in pool 'small'" in line
    assert "(g5.12xlarge, us-west-2b). A reservation has one type and one zone." in line


def test_snapshot_disk_by_default_has_the_snapshot_size() -> None:
    (pool,) = settings(with_pool(**SNAPSHOT)).pools
    assert (pool.data_snapshot_id, pool.data_volume_gib) == ("snap-0123456789abcdef0", None)
    (pool,) = settings(with_pool(**SNAPSHOT, dataVolumeGiB=300)).pools
    assert pool.data_volume_gib == 300
    (pool,) = settings(with_pool()).pools
    assert (pool.data_snapshot_id, pool.data_volume_gib) == (None, None)
