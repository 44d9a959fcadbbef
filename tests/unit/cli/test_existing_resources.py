from __future__ import annotations

import copy
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.stack_file import load
from tests.shipped import shipped
from tests.unit.emulator import SESSION, Cloud
from tests.unit.preflight.accounts import OF_NETWORK, checks
from tests.unit.preflight.accounts import account as preflight_account
from trainyard.cli import existing_resources
from trainyard.cli.errors import CommandError
from trainyard.cli.existing_resources import with_existing_resources
from trainyard.cli.stack_file import write
from trainyard.preflight.aws import Aws
from trainyard.preflight.checks import examine
from trainyard.preflight.findings import WARNING
from trainyard.stack_files import find, read

STACK: dict[str, Any] = {
    "config": {
        "aws:region": "us-west-2",
        "trainyard:network": {
            "vpcId": "vpc-0123456789abcdef0",
            "privateSubnetIds": {"us-west-2a": "subnet-0a", "us-west-2b": "subnet-0b"},
            "workerSecurityGroupId": "sg-0123456789abcdef0",
        },
        "trainyard:pools": [
            {
                "name": "reserved",
                "instanceType": "p4de.24xlarge",
                "zone": "us-west-2b",
                "maxNodes": 2,
                "capacityReservationIds": ["cr-0123456789abcdef0"],
                "dataSnapshotId": "snap-0123456789abcdef0",
                "dataVolumeGiB": 30,
            }
        ],
    }
}


def created_pool(stack: dict[str, Any]) -> dict[str, Any]:
    """The only pool of a stack file, with what was created as existing."""
    (pool,) = with_existing_resources(stack, print)["config"]["trainyard:pools"]
    return dict(pool)


def reservation(account: Cloud, pool: dict[str, Any]) -> dict[str, Any]:
    """The first capacity reservation of a pool, as EC2 describes it."""
    ids = pool["capacityReservationIds"]
    answer = account.client("ec2").describe_capacity_reservations(CapacityReservationIds=ids)
    return dict(answer["CapacityReservations"][0])


def test_an_existing_vpc_has_the_subnets_of_the_settings_in_their_zones_and_a_way_out(account: Cloud) -> None:
    network = with_existing_resources(STACK, print)["config"]["trainyard:network"]
    ec2 = account.client("ec2")
    ids = list(network["privateSubnetIds"].values())
    subnets = ec2.describe_subnets(SubnetIds=ids)["Subnets"]
    assert {s["AvailabilityZone"]: s["SubnetId"] for s in subnets} == network["privateSubnetIds"]
    assert {s["VpcId"] for s in subnets} == {network["vpcId"]}
    tables = ec2.describe_route_tables(Filters=[{"Name": "association.subnet-id", "Values": ids}])
    assert any(route.get("NatGatewayId") for t in tables["RouteTables"] for route in t["Routes"])
    group = ec2.describe_security_groups(GroupIds=[network["workerSecurityGroupId"]])["SecurityGroups"][0]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        assert any(p["GroupId"] == group["GroupId"] for r in rules for p in r.get("UserIdGroupPairs", [])), (
            "its members do not reach each other"
        )


def test_an_existing_reservation_is_for_the_pools_type_zone_and_ceiling(account: Cloud) -> None:
    pool = created_pool(STACK)
    found = reservation(account, pool)
    assert (found["InstanceType"], found["AvailabilityZone"]) == ("p4de.24xlarge", "us-west-2b")
    assert found["TotalInstanceCount"] == 2
    assert found["InstanceMatchCriteria"] == "targeted"


@pytest.mark.parametrize(
    ("ends", "days", "state"), [(None, 14, "active"), (30, 30, "active"), (230, 182, "scheduled")]
)
def test_existing_block_started_unless_duration_impossible(
    account: Cloud, ends: int | None, days: int, state: str
) -> None:
    stack = copy.deepcopy(STACK)
    (pool,) = stack["config"]["trainyard:pools"]
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=ends or 14)
    pool |= {"instanceType": "p5.48xlarge", "reservationType": "capacity-block"}
    pool |= {"reservationEnds": end.isoformat()} if ends else {}
    made = created_pool(stack)
    found = reservation(account, made)
    assert (found["ReservationType"], found["State"]) == ("capacity-block", state)
    assert abs(found["EndDate"] - end) < timedelta(minutes=1)
    assert round((found["EndDate"] - found["StartDate"]) / timedelta(days=1)) == days
    begins = f"{found['StartDate'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert made.get("reservationBegins") == (begins if state == "scheduled" else None)


@pytest.mark.parametrize(("begins", "ends"), [(1, 4), (-2, 3), (1, None)])
def test_an_existing_block_begins_when_the_stack_file_says_and_the_preflight_takes_it(
    account: Cloud, tmp_path: Path, begins: int, ends: int | None
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    times = {"reservationBegins": (now + timedelta(days=begins)).isoformat()}
    times |= {"reservationEnds": (now + timedelta(days=ends)).isoformat()} if ends else {}
    document = read(find("p5"))
    document["config"]["trainyard:pools"][0] |= times
    copied = with_existing_resources(document, print)
    write(copied, tmp_path / "Pulumi.p5.yaml")
    (pool,) = copied["config"]["trainyard:pools"]
    found = reservation(account, pool)
    assert found["StartDate"] == now + timedelta(days=begins)
    assert found["EndDate"] == now + timedelta(days=ends or begins + 14)
    settings = load("p5", tmp_path / "Pulumi.p5.yaml")
    aws = preflight_account(account, now=datetime.now(UTC))
    report = examine(settings, aws, checks("capacity reservations"))
    assert report.of() == []
    assert len(report.of(WARNING)) == (begins > 0)


def test_pool_of_future_blocks_takes_earliest_start(account: Cloud) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    for name, days in (("cr-late", 9), ("cr-soon", 3)):
        with_existing_resources(
            with_blocks(name, reservationBegins=(now + timedelta(days=days)).isoformat()), print
        )
    pool = created_pool(with_blocks("cr-late", "cr-soon"))
    assert pool["reservationBegins"] == f"{now + timedelta(days=3):%Y-%m-%dT%H:%M:%SZ}"
    with_existing_resources(with_blocks("cr-now"), print)
    pool = created_pool(with_blocks("cr-late", "cr-now"))
    assert "reservationBegins" not in pool


def test_the_existing_block_of_p5_is_one_that_the_preflight_takes(account: Cloud, tmp_path: Path) -> None:
    """Each time: an `up` that finds the block, too, must know when it ends."""
    for up in ("first", "second"):
        copied = with_existing_resources(read(find("p5")), print)
        write(copied, tmp_path / "Pulumi.p5.yaml")
        settings = load("p5", tmp_path / "Pulumi.p5.yaml")
        assert settings.pools[0].reservation_ends is not None
        machines = checks("instance types", "capacity reservations", "placement groups")
        report = examine(settings, preflight_account(account, now=datetime.now(UTC)), machines)
        assert (report.of(), report.denied) == ([], []), f"{up} up"


@pytest.mark.parametrize(
    "stack",
    [each for each in shipped() if re.search("vpcId: |capacity-block", find(each).read_text())],
)
def test_preflight_accepts_existing_resources_of_shipped_stacks(
    account: Cloud, tmp_path: Path, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        existing_resources._ExistingResources, "cluster", lambda *_: None
    )  # it needs machines: tests/integration/local
    write(with_existing_resources(read(find(stack)), print), tmp_path / f"Pulumi.{stack}.yaml")
    settings = load(stack, tmp_path / f"Pulumi.{stack}.yaml")
    names = (
        "existing file system",
        "service quotas",
        "network interface quota",
        "capacity reservations",
        "placement groups",
    )
    report = examine(settings, Aws(settings.region, SESSION), (*OF_NETWORK, *checks(*names)))
    assert [str(each) for each in report.findings if " is CREATING" not in each.message] == []
    assert (report.denied, report.failed) == ([], [])


def with_blocks(*ids: str, **changes: Any) -> dict[str, Any]:
    stack = copy.deepcopy(STACK)
    stack["config"]["trainyard:pools"][0] |= {
        "instanceType": "p5.48xlarge",
        "reservationType": "capacity-block",
        "capacityReservationIds": [*ids],
        **changes,
    }
    return stack


def test_of_several_existing_blocks_the_first_end_is_the_pools(account: Cloud) -> None:
    soon, late = (datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) for days in (3, 9))
    for name, end in (("cr-late", late), ("cr-soon", soon)):
        with_existing_resources(with_blocks(name, reservationEnds=end.isoformat()), print)
    pool = created_pool(with_blocks("cr-late", "cr-soon"))
    assert pool["reservationEnds"] == f"{soon:%Y-%m-%dT%H:%M:%SZ}"


def test_the_end_that_the_stack_file_says_stays_and_an_odcr_gets_none(account: Cloud) -> None:
    with_existing_resources(with_blocks("cr-1"), print)
    other = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    pool = created_pool(with_blocks("cr-1", reservationEnds=other))
    assert pool["reservationEnds"] == other, "that it isn't the block's is for the preflight to tell"
    with_existing_resources(with_blocks("cr-2", reservationType="odcr", reservationEnds=other), print)
    pool = created_pool(with_blocks("cr-2", reservationType="odcr"))
    assert "reservationEnds" not in pool, "its machines outlive it"


def test_a_block_that_has_ended_is_left_for_the_preflight_to_tell(account: Cloud) -> None:
    ended = (datetime.now(UTC) - timedelta(days=3)).isoformat()
    with_existing_resources(with_blocks("cr-1", reservationEnds=ended), print)
    pool = created_pool(with_blocks("cr-1"))
    assert "reservationEnds" not in pool


@pytest.mark.parametrize("ends", ["next year", "2027-01-31T11:30:00", 12])
def test_an_end_that_is_none_is_left_for_the_program_to_refuse(account: Cloud, ends: Any) -> None:
    pool = created_pool(with_blocks("cr-1", reservationEnds=ends))
    assert (pool["capacityReservationIds"], pool["reservationEnds"]) == (["cr-1"], ends)
    pool = created_pool(with_blocks("cr-1", reservationBegins=ends))
    assert (pool["capacityReservationIds"], pool["reservationBegins"]) == (["cr-1"], ends)


def test_an_existing_snapshot_is_one_that_the_preflight_takes(account: Cloud) -> None:
    pool = created_pool(STACK)
    ec2 = account.client("ec2")
    (found,) = ec2.describe_snapshots(SnapshotIds=[pool["dataSnapshotId"]])["Snapshots"]
    assert (found["VolumeSize"], found["Encrypted"], found["State"]) == (30, True, "completed")
    assert not ec2.describe_volumes(Filters=[{"Name": "snapshot-id", "Values": [pool["dataSnapshotId"]]}])[
        "Volumes"
    ]


def test_the_next_up_finds_what_the_last_one_made_and_the_document_stays(account: Cloud) -> None:
    before = copy.deepcopy(STACK)
    said: list[str] = []
    first = with_existing_resources(STACK, said.append)
    assert len(said) == 6
    assert with_existing_resources(STACK, said.append) == first
    assert len(said) == 6
    assert before == STACK


@pytest.mark.parametrize(
    "config",
    [
        {"aws:region": "us-west-2", "trainyard:pools": "none"},
        {"aws:region": "us-west-2", "trainyard:pools": [{"capacityReservationIds": ["cr-1"]}]},
        {"aws:region": "us-west-2", "trainyard:network": {"vpcId": "vpc-1", "privateSubnetIds": 3}},
        {"aws:region": ["nowhere"], "trainyard:network": {"vpcId": "vpc-1"}},
        {},
    ],
)
def test_what_is_written_wrongly_is_left_for_the_program_to_refuse(
    account: Cloud, config: dict[str, Any]
) -> None:
    pools = with_existing_resources({"config": config}, print)["config"].get("trainyard:pools")
    assert pools == config.get("trainyard:pools")


def test_what_the_account_refuses_is_one_line(account: Cloud) -> None:
    wrong = copy.deepcopy(STACK)
    wrong["config"]["trainyard:network"]["privateSubnetIds"] = {"eu-north-9z": "subnet-0a"}
    with pytest.raises(CommandError, match="eu-north-9z"):
        with_existing_resources(wrong, print)
