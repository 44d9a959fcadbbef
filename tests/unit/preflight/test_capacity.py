"""Machines: types in their zones, capacity reservations, placement groups, the role for spot machines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.local_aws.test_fleets import Launcher
from tests.unit.preflight.accounts import (
    NOW,
    OTHER,
    TAGS,
    ZONE,
    account,
    checks,
    only,
    pool,
    tagged,
    wanted,
)
from trainyard.preflight.capacity import Reservation, check_reservations
from trainyard.preflight.run import examine
from trainyard.preflight.wanted import WantedPool, WantedSystem

pytestmark = pytest.mark.unit
POOL = "trainyard:pools[0]"
ID = f"{POOL}.capacityReservationIds[0]"
OF_MACHINES = checks("instance types", "capacity reservations", "placement groups", "role for spot machines")
RESERVED = "cr-0123456789abcdef0"


def problems(cloud: Cloud, *pools: WantedPool, **changes: Any) -> list[str]:
    report = examine(account(cloud), wanted(pools=pools, **changes), NOW, OF_MACHINES)
    assert (report.not_checked, report.failed) == ([], [])
    return [str(problem) for problem in report.problems]


def reserve(cloud: Cloud, **changes: Any) -> str:
    arguments = {
        "InstanceType": "p4de.24xlarge",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": ZONE,
        "InstanceCount": 2,
        "InstanceMatchCriteria": "targeted",
        **changes,
    }
    made = cloud.client("ec2").create_capacity_reservation(**arguments)
    return str(made["CapacityReservation"]["CapacityReservationId"])


def reserved(*ids: str, **changes: Any) -> WantedPool:
    return pool(
        **{
            "instance_type": "g5.12xlarge",
            "purchase": "reserved",
            "reservation_ids": ids,
            "vcpus": 48,
            **changes,
        }
    )


def g5(cloud: Cloud, **changes: Any) -> str:
    return reserve(cloud, **{"InstanceType": "g5.12xlarge", **changes})


def test_a_type_that_the_zone_does_not_offer_is_told_with_zones_that_do(cloud: Cloud) -> None:
    assert problems(cloud, pool()) == []
    line = only(problems(cloud, pool(zone=f"{REGION}d")), f"{POOL}.instanceType")
    assert line.endswith(
        f"'g5.12xlarge' is not offered in {REGION}d; it must be in {REGION}a or {REGION}b or {REGION}c"
    )


def test_a_type_that_no_zone_of_the_region_offers_is_told(cloud: Cloud) -> None:
    line = only(problems(cloud, pool(instance_type="g5.13xlarge")), f"{POOL}.instanceType")
    assert f"no zone of {REGION} offers it" in line


def test_system_nodes_need_their_type_in_every_zone(cloud: Cloud) -> None:
    only(
        problems(cloud, pool(), system=WantedSystem(instance_type="trn1.32xlarge", count=1, vcpus=128)),
        "trainyard:cluster.systemNodes.instanceType",
        f"'trn1.32xlarge' is not offered in {ZONE};",
    )


def test_a_good_reservation_passes(cloud: Cloud) -> None:
    assert problems(cloud, reserved(g5(cloud))) == []


def test_a_reservation_that_does_not_exist_is_named(cloud: Cloud) -> None:
    only(problems(cloud, reserved(RESERVED)), ID, f"'{RESERVED}' does not exist in {REGION}")


def test_a_reservation_in_another_zone_is_named(cloud: Cloud) -> None:
    identity = g5(cloud, AvailabilityZone=OTHER)
    only(problems(cloud, reserved(identity)), ID, f"'{identity}' lies in {OTHER}; it must lie in {ZONE}")


def test_a_reservation_of_another_type_is_named(cloud: Cloud) -> None:
    identity = reserve(cloud)
    only(problems(cloud, reserved(identity)), ID, "is of p4de.24xlarge; it must be of g5.12xlarge")


def test_a_reservation_that_anyone_may_use_up_is_told(cloud: Cloud) -> None:
    only(problems(cloud, reserved(g5(cloud, InstanceMatchCriteria="open"))), ID, "is open", "targeted")


def test_a_cancelled_reservation_is_told(cloud: Cloud) -> None:
    identity = g5(cloud)
    cloud.client("ec2").cancel_capacity_reservation(CapacityReservationId=identity)
    only(
        problems(cloud, reserved(identity)), ID, f"'{identity}' is cancelled; it must be active or scheduled"
    )


def test_each_of_several_reservations_is_told_by_its_own_place_in_the_list(cloud: Cloud) -> None:
    lines = problems(cloud, reserved(g5(cloud), RESERVED))
    only(lines, f"{POOL}.capacityReservationIds[1]", RESERVED)


def test_reservations_with_too_few_machines_are_told_unless_more_may_be_bought(cloud: Cloud) -> None:
    ids = g5(cloud, InstanceCount=1), g5(cloud, InstanceCount=2)
    assert problems(cloud, reserved(*ids, max_nodes=3)) == []
    only(
        problems(cloud, reserved(*ids, max_nodes=4)),
        f"{POOL}.maxNodes",
        "4 is more than the reservations have free (3 of 3)",
        "onDemandFallback",
    )
    assert problems(cloud, reserved(*ids, max_nodes=4, on_demand_fallback=True)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"zone": OTHER},
        {"instance_type": "p4d.24xlarge"},
        {"state": "cancelled"},
        {"ends": NOW, "state": "expired"},
    ],
)
def test_of_a_reservation_that_can_not_be_the_pools_nobody_is_told_to_take_fewer(
    wrong: dict[str, Any],
) -> None:
    """That would mend nothing."""
    only(judged(made(free=1, **wrong)), ID)
    pools = two_pools({"reservation_ids": (RESERVED,)}, {"reservation_ids": (RESERVED,)})
    lines = [str(p) for p in check_reservations(wanted(pools=pools), {RESERVED: made(**wrong)}, NOW)]
    assert [line.partition(": ")[0] for line in lines] == [ID, ID.replace(POOL, "trainyard:pools[1]")]


def test_of_one_that_anyone_may_use_up_both_mistakes_are_told_at_once() -> None:
    keys = [line.partition(": ")[0] for line in judged(made(free=1, match="open"))]
    assert keys == [ID, f"{POOL}.maxNodes"]


SHARED = (f"{POOL}.maxNodes and trainyard:pools[1].maxNodes", "4 together is more than")


def two_pools(first: dict[str, Any], second: dict[str, Any]) -> tuple[WantedPool, WantedPool]:
    return reserved(**first), reserved(**{"key": "trainyard:pools[1]", "name": "b", **second})


def test_pools_that_share_a_reservation_must_find_enough_machines_in_it_together(cloud: Cloud) -> None:
    two, other = g5(cloud, InstanceCount=2), g5(cloud, InstanceCount=2)
    both = two_pools({"reservation_ids": (two,)}, {"reservation_ids": (two,)})
    only(problems(cloud, *both), *SHARED, f"'{two}', which these pools share, has free (2)")
    one_each = two_pools(
        {"reservation_ids": (two,), "max_nodes": 1}, {"reservation_ids": (two,), "max_nodes": 1}
    )
    assert problems(cloud, *one_each) == []
    assert problems(cloud, *two_pools({"reservation_ids": (two,)}, {"reservation_ids": (other,)})) == []
    more = two_pools({"reservation_ids": (two,)}, {"reservation_ids": (two, other)})
    assert problems(cloud, *more) == []
    buying = two_pools({"reservation_ids": (two,)}, {"reservation_ids": (two,), "on_demand_fallback": True})
    assert problems(cloud, *buying) == []


def test_a_pool_can_make_two_others_share(cloud: Cloud) -> None:
    two, other = g5(cloud, InstanceCount=2), g5(cloud, InstanceCount=2)
    third = reserved(two, other, key="trainyard:pools[2]", name="c")
    pools = (*two_pools({"reservation_ids": (two,)}, {"reservation_ids": (other,)}), third)
    only(problems(cloud, *pools), f"{SHARED[0]} and trainyard:pools[2].maxNodes", "6 together", "free (4)")


def made(**changes: Any) -> Reservation:
    values: dict[str, Any] = {
        "reservation_id": RESERVED,
        "state": "active",
        "zone": ZONE,
        "instance_type": "g5.12xlarge",
        "total": 2,
        "free": 2,
        "match": "targeted",
        **changes,
    }
    return Reservation(**values)


def judged(reservation: Reservation, **changes: Any) -> list[str]:
    stack = wanted(pools=(reserved(RESERVED, **changes),))
    return [str(p) for p in check_reservations(stack, {RESERVED: reservation}, NOW)]


def test_machines_of_the_stack_itself_do_not_take_its_reservation_away() -> None:
    assert len(judged(made(free=1))) == 1
    assert judged(made(free=1, ours=1)) == []


def test_a_scheduled_reservation_has_nothing_free_yet_and_passes() -> None:
    assert judged(made(state="scheduled", free=0)) == []


@pytest.mark.parametrize("state", ["expired", "payment-pending", "failed", "pending", "unsupported"])
def test_any_other_state_is_told(state: str) -> None:
    only(judged(made(state=state)), ID, f"is {state}")


BLOCK = {"reservation_type": "capacity-block", "reservation_ends": NOW + timedelta(days=2)}


def block(cloud: Cloud, ends: datetime, hours: int = 24) -> str:
    ec2 = cloud.client("ec2")
    offers = ec2.describe_capacity_block_offerings(
        InstanceType="p5.48xlarge", InstanceCount=2, CapacityDurationHours=hours, EndDateRange=ends
    )["CapacityBlockOfferings"]
    offer = next(each for each in offers if each["AvailabilityZone"] == ZONE)
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return str(bought["CapacityReservation"]["CapacityReservationId"])


def of_block(cloud: Cloud, identity: str, ends: datetime) -> list[str]:
    wanted_pool = reserved(
        identity,
        instance_type="p5.48xlarge",
        vcpus=192,
        reservation_type="capacity-block",
        reservation_begins=ends - timedelta(hours=24),
        reservation_ends=ends,
    )
    stack = wanted(pools=(wanted_pool,))
    report = examine(account(cloud), stack, datetime.now(UTC), checks("capacity reservations"))
    return [str(problem) for problem in report.problems]


@pytest.mark.parametrize("starts_in_hours", [-12, 12])
def test_a_bought_block_passes_while_it_is_active_or_scheduled(cloud: Cloud, starts_in_hours: int) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=24 + starts_in_hours)
    assert of_block(cloud, block(cloud, ends), ends) == []


def test_a_bought_block_that_has_ended_is_named(cloud: Cloud) -> None:
    ended = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    identity = block(cloud, ended)
    only(of_block(cloud, identity, ended), ID, f"'{identity}' ended at {ended:%Y-%m-%dT%H:%MZ}")


def test_a_capacity_block_passes_with_its_own_end() -> None:
    assert judged(made(kind="capacity-block", ends=NOW + timedelta(days=2)), **BLOCK) == []


@pytest.mark.parametrize(
    ("instance_type", "minutes", "told"),
    [("g5.12xlarge", 40, True), ("g5.12xlarge", 41, False), ("trn2u.48xlarge", 70, True)],
)
def test_a_block_that_karpenter_drains_already_is_of_no_use(
    instance_type: str, minutes: int, told: bool
) -> None:
    ends = NOW + timedelta(minutes=minutes)
    found = made(kind="capacity-block", ends=ends, instance_type=instance_type)
    lines = judged(found, **{**BLOCK, "reservation_ends": ends, "instance_type": instance_type})
    if told:
        only(lines, ID, f"ends at {ends:%Y-%m-%dT%H:%M:%SZ}", f"has to be over {minutes} minutes before")
    else:
        assert lines == []
    assert judged(made(ends=ends)) == [], "machines of an ODCR outlive it"


def test_an_expired_capacity_block_is_named_with_its_end() -> None:
    ended = datetime(2026, 11, 20, 11, 30, tzinfo=UTC)
    lines = judged(
        made(kind="capacity-block", ends=ended, state="expired"), **{**BLOCK, "reservation_ends": ended}
    )
    only(lines, ID, "ended at 2026-11-20T11:30Z; it must be one that has not ended")


def test_another_end_than_the_stack_file_says_is_told() -> None:
    lines = judged(made(kind="capacity-block", ends=NOW + timedelta(days=1)), **BLOCK)
    only(
        lines,
        f"{POOL}.reservationEnds",
        "is 2026-11-23T12:00:00Z; it must be 2026-11-22T12:00:00Z, the end of",
    )


def test_a_blocks_end_that_the_stack_file_does_not_say_is_told_and_an_odcrs_need_not_be_said() -> None:
    ends = NOW + timedelta(days=2)
    lines = judged(made(kind="capacity-block", ends=ends), **{**BLOCK, "reservation_ends": None})
    only(lines, f"{POOL}.reservationEnds", "is missing", "it must be 2026-11-23T12:00:00Z")
    assert judged(made(ends=ends)) == []


SECOND = "cr-0123456789abcdef1"
FIRST_END, LAST_END = NOW + timedelta(days=2), NOW + timedelta(days=9)


def judged_both(first: Reservation | None, second: Reservation | None, **changes: Any) -> list[str]:
    stack = wanted(pools=(reserved(RESERVED, SECOND, **changes),))
    return [str(p) for p in check_reservations(stack, {RESERVED: first, SECOND: second}, NOW)]


def two_blocks(ends: tuple[datetime, datetime], told: datetime | None) -> list[str]:
    first = made(kind="capacity-block", ends=ends[0])
    second = made(kind="capacity-block", ends=ends[1], reservation_id=SECOND)
    return judged_both(first, second, **{**BLOCK, "reservation_ends": told})


@pytest.mark.parametrize("ends", [(FIRST_END, LAST_END), (LAST_END, FIRST_END), (FIRST_END, FIRST_END)])
def test_two_blocks_pass_with_the_end_of_the_one_that_ends_first(ends: tuple[datetime, datetime]) -> None:
    assert two_blocks(ends, FIRST_END) == []


@pytest.mark.parametrize(
    ("told", "said"),
    [(LAST_END, "is 2026-11-30T12:00:00Z"), (None, "is missing"), (NOW, f"is {NOW:%Y-%m-%dT}")],
)
def test_any_other_end_of_two_blocks_is_one_line_with_the_end_that_is_right(
    told: datetime | None, said: str
) -> None:
    (line,) = two_blocks((LAST_END, FIRST_END), told)
    assert line.startswith(f"{POOL}.reservationEnds: {said}")
    assert line.endswith(f"; it must be 2026-11-23T12:00:00Z, the end of '{SECOND}', the first of 2 to end")


def test_a_block_that_has_ended_has_no_say_in_the_end_of_the_others() -> None:
    (line,) = two_blocks((NOW, LAST_END), LAST_END)
    assert line.startswith(f"{ID}: '{RESERVED}' ended at")


def test_while_one_of_two_blocks_is_missing_nothing_is_said_of_the_end() -> None:
    lines = judged_both(made(kind="capacity-block", ends=LAST_END), None, **BLOCK)
    only(lines, f"{POOL}.capacityReservationIds[1]", "does not exist")


def test_an_end_of_reservations_that_never_end_is_told() -> None:
    both = made(), made(reservation_id=SECOND)
    assert judged_both(*both) == []
    lines = judged_both(*both, reservation_ends=FIRST_END)
    only(lines, f"{POOL}.reservationEnds", "it must be left out: none of the pool's reservations ends")
    limited = made(ends=FIRST_END), made(reservation_id=SECOND)
    assert judged_both(*limited, reservation_ends=FIRST_END) == []
    assert judged_both(*limited) == []


def test_a_block_that_is_said_to_be_an_odcr_is_told_and_the_other_way_round() -> None:
    only(
        judged(made(kind="capacity-block")), ID, "is of the type capacity-block, and reservationType is odcr"
    )
    lines = judged(made(ends=NOW + timedelta(days=2)), **BLOCK)
    only(lines, ID, "is of the type odcr, and reservationType is capacity-block")


def test_windows_and_dedicated_tenancy_are_told() -> None:
    lines = judged(made(platform="Windows", tenancy="dedicated"))
    assert ["Linux/UNIX" in lines[0], "default tenancy" in lines[1]] == [True, True]


def test_the_reservations_placement_group_must_be_the_one_that_is_named() -> None:
    key = f"{POOL}.placementGroupOfReservation"
    named = {"placement_group": "near", "placement_group_of_reservation": "near"}
    assert judged(made(group="near"), **named) == []
    only(judged(made(group="near")), key, "is missing; it must be 'near'")
    only(judged(made(group="far"), **named), key, "'near' is not the placement group", "must be 'far'")
    only(judged(made(), **named), key, "left out")
    assert judged(made(kind="capacity-block", group="x", ends=BLOCK["reservation_ends"]), **BLOCK) == []


def test_a_placement_group_must_exist_and_be_a_cluster(cloud: Cloud) -> None:
    ec2, key = cloud.client("ec2"), f"{POOL}.placementGroup"
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    ec2.create_placement_group(GroupName="apart", Strategy="spread")
    assert problems(cloud, pool(placement_group="near")) == []
    only(problems(cloud, pool(placement_group="apart")), key, "strategy spread")
    only(problems(cloud, pool(placement_group="nowhere")), key, "'nowhere' does not exist")


def test_a_cluster_group_with_machines_in_another_zone_is_told(cloud: Cloud) -> None:
    ec2, launcher = cloud.client("ec2"), Launcher(cloud)
    for name in ("near", "other"):
        ec2.create_placement_group(GroupName=name, Strategy="cluster")
    group = ec2.describe_placement_groups(GroupNames=["near"])["PlacementGroups"][0]
    template = launcher.make_template("placed", Placement={"GroupId": group["GroupId"]})
    (started,) = launcher.fleet(zones=OTHER[-1], template=template)["Instances"]
    assert problems(cloud, pool(placement_group="other")) == []
    assert problems(cloud, pool(placement_group="near", zone=OTHER)) == []
    lines = problems(cloud, pool(placement_group="near"))
    only(lines, f"{POOL}.placementGroup", f"'near' has machines in {OTHER}", f"with machines in {ZONE}")
    ec2.terminate_instances(InstanceIds=started["InstanceIds"])
    assert problems(cloud, pool(placement_group="near")) == []


def test_spot_needs_its_role_once_per_account(cloud: Cloud) -> None:
    only(problems(cloud, pool(purchase="spot")), f"{POOL}.purchase", "create-service-linked-role")
    cloud.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    assert problems(cloud, pool(purchase="spot")) == []


def test_a_reservation_is_read_as_the_emulator_shows_it(cloud: Cloud) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    identity = g5(
        cloud,
        EndDateType="limited",
        EndDate=ends,
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tagged(TAGS)}],
    )
    assert problems(cloud, reserved(identity, reservation_ends=ends)) == []
    lines = problems(cloud, reserved(identity, reservation_ends=ends + timedelta(hours=1)))
    only(lines, f"{POOL}.reservationEnds")
