"""Instance types in their zones, capacity reservations and placement groups."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.local_aws.test_fleets import Launcher
from tests.unit.preflight.accounts import (
    NOW,
    OTHER,
    ZONE,
    Answers,
    account,
    checks,
    expect,
    findings,
    only,
    stack,
)
from trainyard.preflight.aws import Aws
from trainyard.preflight.checks import examine
from trainyard.preflight.findings import WARNING

POOL = "trainyard:pools[0]"
ID, MAX = f"{POOL}.capacityReservationIds[0]", f"{POOL}.maxNodes"
FIRST, SECOND = "cr-0123456789abcdef0", "cr-0123456789abcdef1"
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("changes", "key", "parts"),
    [
        ({}, "", ()),
        ({"zone": f"{REGION}d"}, f"{POOL}.instanceType", (f"is not offered in {REGION}d. It must be in {ZONE} or",)),
        ({"instanceType": "trn1.32xlarge"}, f"{POOL}.instanceType", (f"'trn1.32xlarge' is not offered in {ZONE}",)),
    ],
)  # fmt: skip
def test_zone_must_offer_the_type(
    cloud: Cloud, changes: dict[str, Any], key: str, parts: tuple[str, ...]
) -> None:
    network = {"zones": [ZONE, OTHER, f"{REGION}d"]}
    lines = findings(account(cloud), stack(changes, network=network), "instance types")
    expect(lines, key, *parts)


def test_type_that_no_zone_offers_needs_another_region() -> None:
    offers = [{"InstanceType": "g5.12xlarge", "Location": ZONE}]
    lines = findings(
        Answers(describe_instance_type_offerings=offers),
        stack({"instanceType": "g6.xlarge"}),
        "instance types",
    )
    assert f"No zone of {REGION} offers it" in lines[0]
    only(lines[1:], "trainyard:cluster.systemNodes.instanceType", f"not offered in {ZONE}, {OTHER}")


def reservation(**changes: Any) -> dict[str, Any]:
    return {
        "CapacityReservationId": FIRST,
        "State": "active",
        "AvailabilityZone": ZONE,
        "InstanceType": "g5.12xlarge",
        "TotalInstanceCount": 2,
        "AvailableInstanceCount": 2,
        "InstanceMatchCriteria": "targeted",
        "InstancePlatform": "Linux/UNIX",
        **changes,
    }


class Reservations(Answers):
    """An account with these reservations, in which the stack runs `own` instances in the first."""

    def __init__(self, *found: dict[str, Any], own: int = 0) -> None:
        instances = [{"CapacityReservationId": FIRST}] * own
        super().__init__(describe_instances=[{"Instances": instances}])
        self.by_id = {each["CapacityReservationId"]: each for each in found}

    def items(self, service: str, method: str, key: str, **arguments: Any) -> Any:
        if method != "describe_capacity_reservations":
            return super().items(service, method, key, **arguments)
        return [self.by_id[name] for name in arguments["CapacityReservationIds"] if name in self.by_id]


def reserved(*ids: str, **changes: Any) -> dict[str, Any]:
    """Return a pool; datetimes are written as the stack file has them."""
    pool = {"purchase": "reserved", "capacityReservationIds": list(ids or (FIRST,)), **changes}
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in pool.items()
        if value is not None
    }


def lines(*found: dict[str, Any], own: int = 0, kind: str = "missing", **changes: Any) -> list[str]:
    """Return the findings about one pool with the first reservation, or with both."""
    changes = {"ids": (FIRST,), **changes}
    settings = stack(reserved(*changes.pop("ids"), **changes))
    return findings(Reservations(*found, own=own), settings, "capacity reservations", kind=kind)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"AvailabilityZone": OTHER}, f"is in {OTHER}. It must be in {ZONE}"),
        ({"InstanceType": "p4d.24xlarge"}, "is for p4d.24xlarge. It must be for g5.12xlarge"),
        ({"InstanceMatchCriteria": "open"}, "is open"),
        ({"InstancePlatform": "Windows"}, "is for Windows. It must be for Linux/UNIX"),
        ({"Tenancy": "dedicated"}, "It must have default tenancy"),
        ({"ReservationType": "capacity-block"}, "has the type capacity-block, but reservationType is odcr"),
        ({"EndDate": NOW, "State": "expired"}, "ended at 2026-11-21T12:00:00Z"),
        *(
            ({"State": state}, f"is {state}. It must be active or scheduled")
            for state in ("cancelled", "expired", "payment-pending", "failed", "pending", "unsupported")
        ),
    ],
)
def test_reservation_must_fit_the_pool(changes: dict[str, Any], part: str) -> None:
    only(lines(reservation(**changes)), ID, f"'{FIRST}' ", part)


@pytest.mark.parametrize("changes", [{"AvailabilityZone": OTHER}, {"State": "cancelled"}, {"EndDate": NOW}])
def test_size_of_an_unusable_reservation_is_not_checked(changes: dict[str, Any]) -> None:
    only(lines(reservation(AvailableInstanceCount=1, **changes)), ID)
    settings = stack(reserved(), reserved())
    found = findings(Reservations(reservation(**changes)), settings, "capacity reservations")
    assert [line.partition(": ")[0] for line in found] == [ID, ID.replace("pools[0]", "pools[1]")]


@pytest.mark.parametrize(
    ("changes", "own", "pool", "part"),
    [
        ({"AvailableInstanceCount": 1}, 0, {}, "2 is more than the reservations have free (1 of 2)"),
        ({"AvailableInstanceCount": 1}, 1, {}, ""),
        ({"AvailableInstanceCount": 1}, 0, {"onDemandFallback": True}, ""),
        ({"AvailableInstanceCount": 0, "State": "scheduled"}, 0, {}, ""),
    ],
)
def test_reservation_must_have_enough_free_instances(
    changes: dict[str, Any], own: int, pool: dict[str, Any], part: str
) -> None:
    found = lines(reservation(**changes), own=own, **pool)
    expect(found, MAX, part, "onDemandFallback")


@pytest.mark.parametrize(
    ("pools", "keys", "parts"),
    [
        ([((FIRST,), {}), ((FIRST,), {})], (0, 1), ("4 together is more than", f"'{FIRST}', which", "free (2)")),
        ([((FIRST,), {"maxNodes": 1}), ((FIRST,), {"maxNodes": 1})], (), ()),
        ([((FIRST,), {}), ((SECOND,), {})], (), ()),
        ([((FIRST,), {}), ((FIRST, SECOND), {})], (), ()),
        ([((FIRST,), {}), ((FIRST,), {"onDemandFallback": True})], (), ()),
        ([((FIRST,), {}), ((SECOND,), {}), ((FIRST, SECOND), {})], (0, 1, 2), ("6 together", "free (4)")),
    ],
)  # fmt: skip
def test_pools_with_the_same_reservations_share_their_instances(
    pools: list[tuple[tuple[str, ...], dict[str, Any]]], keys: tuple[int, ...], parts: tuple[str, ...]
) -> None:
    aws = Reservations(reservation(), reservation(CapacityReservationId=SECOND))
    settings = stack(*(reserved(*ids, **changes) for ids, changes in pools))
    found = findings(aws, settings, "capacity reservations")
    expect(found, " and ".join(f"trainyard:pools[{index}].maxNodes" for index in keys), *parts)


def block(
    start: datetime | None = None, end: datetime | None = NOW + 9 * DAY, **changes: Any
) -> dict[str, Any]:
    state = "scheduled" if start and start > NOW else "active"
    return reservation(
        ReservationType="capacity-block", StartDate=start, EndDate=end, **{"State": state, **changes}
    )


def second(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "CapacityReservationId": SECOND}


BLOCK = {
    "reservationType": "capacity-block",
    "reservationEnds": NOW + 9 * DAY,
    "instanceType": "p5.48xlarge",
    "efa": "none",
}
P5 = {"InstanceType": "p5.48xlarge"}
STARTS, ENDS = f"{POOL}.reservationBegins", f"{POOL}.reservationEnds"
SOON, LATER = NOW + DAY, NOW + 3 * DAY


@pytest.mark.parametrize(
    ("starts", "setting", "fallback", "kind", "part"),
    [
        ([SOON], SOON, False, WARNING, f"'{FIRST}' starts at 2026-11-22T12:00:00Z. Until then the pool has no nodes"),
        ([SOON], SOON, True, WARNING, "Until then the pool has only on-demand nodes"),
        ([SOON], None, False, "missing", f"is missing. It must be 2026-11-22T12:00:00Z, the start of '{FIRST}'"),
        ([SOON], LATER, False, "missing", "is 2026-11-24T12:00:00Z. It must be 2026-11-22T12:00:00Z"),
        ([NOW], None, False, "", ""),
        ([NOW - DAY], NOW - DAY, False, "", ""),
        ([NOW - DAY], LATER, False, "missing", f"is 2026-11-24T12:00:00Z, but '{FIRST}' started"),
        ([LATER, SOON], SOON, False, WARNING, f"'{SECOND}' starts at 2026-11-22T12:00:00Z, the first of 2 to start"),
        ([SOON, LATER], None, False, "missing", f"the start of '{FIRST}', the first of 2 to start"),
        ([NOW, LATER], None, False, "", ""),
        ([None, LATER], None, False, "", ""),
    ],
)  # fmt: skip
def test_start_of_a_block_is_the_first_of_the_pool(
    starts: list[datetime | None], setting: datetime | None, fallback: bool, kind: str, part: str
) -> None:
    found = [block(starts[0], **P5), *(second(block(start, **P5)) for start in starts[1:])]
    pool = {
        **BLOCK,
        "ids": (FIRST, SECOND)[: len(starts)],
        "reservationBegins": setting,
        "onDemandFallback": fallback,
    }
    for each in ("missing", WARNING):
        result = lines(*found, kind=each, **pool)
        if each == kind:
            only(result, STARTS, part)
        else:
            assert result == []


def test_start_of_an_odcr_is_a_warning_and_may_be_omitted() -> None:
    for setting in (None, SOON):
        found = lines(reservation(StartDate=SOON, State="scheduled"), kind=WARNING, reservationBegins=setting)
        only(found, STARTS)


@pytest.mark.parametrize(
    ("ends", "setting", "part"),
    [
        ([LATER], LATER, ""),
        ([SOON], LATER, "is 2026-11-24T12:00:00Z. It must be 2026-11-22T12:00:00Z, the end of"),
        ([LATER], None, "is missing. It must be 2026-11-24T12:00:00Z"),
        ([SOON, LATER], SOON, ""),
        ([LATER, SOON], SOON, ""),
        ([LATER, SOON], LATER, f"It must be 2026-11-22T12:00:00Z, the end of '{SECOND}', the first of 2 to end"),
        ([LATER, SOON], None, "is missing. It must be 2026-11-22T12:00:00Z"),
    ],
)  # fmt: skip
def test_end_of_a_block_is_the_first_of_the_pool(
    ends: list[datetime], setting: datetime | None, part: str
) -> None:
    found = [block(end=ends[0], **P5), *(second(block(end=end, **P5)) for end in ends[1:])]
    result = lines(*found, **{**BLOCK, "ids": (FIRST, SECOND)[: len(ends)], "reservationEnds": setting})
    expect(result, ENDS, part)


def test_missing_or_ended_block_does_not_decide_the_end() -> None:
    both = {**BLOCK, "ids": (FIRST, SECOND)}
    ended = block(end=NOW, **P5)
    only(lines(ended, second(block(**P5)), **both), ID, "ended at")
    only(lines(block(SOON, end=LATER, **P5), **both), f"{POOL}.capacityReservationIds[1]", "does not exist")


def test_end_of_an_odcr_may_be_omitted() -> None:
    only(
        lines(reservation(), reservationEnds=SOON),
        ENDS,
        "It must be omitted: none of the pool's reservations ends",
    )
    ending = reservation(EndDate=SOON)
    assert lines(ending) == lines(ending, reservationEnds=SOON) == []


@pytest.mark.parametrize(
    ("name", "minutes", "part"),
    [("p5.48xlarge", 40, "40 minutes before"), ("p5.48xlarge", 41, ""), ("g5.12xlarge", 30, "")],
)
def test_block_that_karpenter_drains_already_is_useless(name: str, minutes: int, part: str) -> None:
    end = NOW + timedelta(minutes=minutes)
    if name == "g5.12xlarge":
        assert lines(reservation(EndDate=end)) == [], "nodes of an ODCR stay after its end"
        return
    found = lines(block(end=end, **P5), **{**BLOCK, "reservationEnds": end})
    assert [part in line and line.startswith(ID) for line in found] == ([True] if part else [])


@pytest.mark.parametrize(
    ("group", "pool", "part"),
    [
        ("near", "near", ""),
        ("near", None, "is missing. It and placementGroup must be 'near'"),
        ("far", "near", "'near' is not the placement group"),
        (None, "near", "must be omitted"),
    ],
)
def test_placement_group_must_be_the_reservations(group: str | None, pool: str | None, part: str) -> None:
    arn = {"PlacementGroupArn": f"arn:aws:ec2:::placement-group/{group}"} if group else {}
    named = {"placementGroup": pool, "placementGroupOfReservation": pool}
    # A placement group needs a type with EFA.
    found = lines(
        reservation(**arn, InstanceType="p4d.24xlarge"), instanceType="p4d.24xlarge", efa=None, **named
    )
    expect(found, f"{POOL}.placementGroupOfReservation", part)


def reserve(cloud: Cloud, **changes: Any) -> str:
    arguments = {
        "InstanceType": "g5.12xlarge",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": ZONE,
        "InstanceCount": 2,
        "InstanceMatchCriteria": "targeted",
        **changes,
    }
    made = cloud.client("ec2").create_capacity_reservation(**arguments)
    return str(made["CapacityReservation"]["CapacityReservationId"])


def test_emulators_reservations_are_read(cloud: Cloud) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + 3 * DAY
    identity = reserve(cloud, EndDateType="limited", EndDate=ends)

    def check(*ids: str, **changes: Any) -> list[str]:
        return findings(account(cloud), stack(reserved(*ids, **changes)), "capacity reservations")

    assert check(identity, reservationEnds=ends) == []
    only(check(identity, reservationEnds=ends + timedelta(hours=1)), ENDS)
    only(check(identity, FIRST), f"{POOL}.capacityReservationIds[1]", f"'{FIRST}' does not exist in {REGION}")


def buy_block(cloud: Cloud, ends: datetime) -> str:
    ec2 = cloud.client("ec2")
    offers = ec2.describe_capacity_block_offerings(
        InstanceType="p5.48xlarge", InstanceCount=2, CapacityDurationHours=24, EndDateRange=ends
    )["CapacityBlockOfferings"]
    offer = next(each for each in offers if each["AvailabilityZone"] == ZONE)
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return str(bought["CapacityReservation"]["CapacityReservationId"])


@pytest.mark.parametrize("hours", [12, 36])
def test_emulators_block_is_read_when_active_or_scheduled(cloud: Cloud, hours: int) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours)
    identity = buy_block(cloud, ends)
    begins = ends - DAY if hours > 24 else None
    settings = stack(reserved(identity, **{**BLOCK, "reservationBegins": begins, "reservationEnds": ends}))
    report = examine(settings, account(cloud, now=datetime.now(UTC)), checks("capacity reservations"))
    assert report.of() == []
    assert [each.key for each in report.of(WARNING)] == [STARTS] * (hours > 24)
    if hours > 24:
        *_, note, last = report.lines("train")
        assert note.startswith(f"warning: {STARTS}: '{identity}' starts at ")
        assert last.endswith("no problems")


def placement(aws: Aws, **changes: Any) -> list[str]:
    return findings(aws, stack({"instanceType": "p4d.24xlarge", "efa": "ip", **changes}), "placement groups")


def test_placement_group_must_exist_with_the_strategy_cluster(cloud: Cloud) -> None:
    ec2, key = cloud.client("ec2"), f"{POOL}.placementGroup"
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    ec2.create_placement_group(GroupName="apart", Strategy="spread")
    assert placement(account(cloud), placementGroup="near") == []
    assert placement(account(cloud), placementGroup=True) == [], "the stack creates it"
    only(placement(account(cloud), placementGroup="apart"), key, "strategy spread")
    only(placement(account(cloud), placementGroup="nowhere"), key, "'nowhere' does not exist")


def test_placement_group_must_have_no_instances_in_another_zone(cloud: Cloud) -> None:
    ec2, launcher = cloud.client("ec2"), Launcher(cloud)
    for name in ("near", "other"):
        ec2.create_placement_group(GroupName=name, Strategy="cluster")
    group = ec2.describe_placement_groups(GroupNames=["near"])["PlacementGroups"][0]
    template = launcher.make_template("placed", Placement={"GroupId": group["GroupId"]})
    (started,) = launcher.fleet(zones=OTHER[-1], template=template)["Instances"]
    assert placement(account(cloud), placementGroup="other") == []
    assert placement(account(cloud), placementGroup="near", zone=OTHER) == []
    found = placement(account(cloud), placementGroup="near")
    only(found, f"{POOL}.placementGroup", f"'near' has instances in {OTHER}", f"with instances in {ZONE}")
    ec2.terminate_instances(InstanceIds=started["InstanceIds"])
    assert placement(account(cloud), placementGroup="near") == []
