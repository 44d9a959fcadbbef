from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest

from local.deploy.given import GivenError, with_given
from tests.unit.emulator import SESSION, Cloud

pytestmark = pytest.mark.unit

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


@pytest.fixture
def account(deployer: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", SESSION)
    return deployer


def test_a_given_vpc_has_the_subnets_of_the_settings_in_their_zones_and_a_way_out(account: Cloud) -> None:
    network = with_given(STACK, print)["config"]["trainyard:network"]
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


def test_a_given_reservation_is_for_the_pools_type_zone_and_ceiling(account: Cloud) -> None:
    (pool,) = with_given(STACK, print)["config"]["trainyard:pools"]
    found = account.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=pool["capacityReservationIds"]
    )["CapacityReservations"][0]
    assert (found["InstanceType"], found["AvailabilityZone"]) == ("p4de.24xlarge", "us-west-2b")
    assert found["TotalInstanceCount"] == 2
    assert found["InstanceMatchCriteria"] == "targeted"


@pytest.mark.parametrize(
    ("ends", "days", "state"), [(None, 14, "active"), (30, 30, "active"), (230, 182, "scheduled")]
)
def test_a_given_block_has_begun_unless_none_could_last_so_long(
    account: Cloud, ends: int | None, days: int, state: str
) -> None:
    stack = copy.deepcopy(STACK)
    (pool,) = stack["config"]["trainyard:pools"]
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=ends or 14)
    pool |= {"instanceType": "p5.48xlarge", "reservationType": "capacity-block"}
    pool |= {"reservationEnds": end.isoformat()} if ends else {}
    (made,) = with_given(stack, print)["config"]["trainyard:pools"]
    found = account.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=made["capacityReservationIds"]
    )["CapacityReservations"][0]
    assert (found["ReservationType"], found["State"]) == ("capacity-block", state)
    assert abs(found["EndDate"] - end) < timedelta(minutes=1)
    assert round((found["EndDate"] - found["StartDate"]) / timedelta(days=1)) == days


def test_a_given_snapshot_is_one_that_the_preflight_takes(account: Cloud) -> None:
    (pool,) = with_given(STACK, print)["config"]["trainyard:pools"]
    ec2 = account.client("ec2")
    (found,) = ec2.describe_snapshots(SnapshotIds=[pool["dataSnapshotId"]])["Snapshots"]
    assert (found["VolumeSize"], found["Encrypted"], found["State"]) == (30, True, "completed")
    assert not ec2.describe_volumes(Filters=[{"Name": "snapshot-id", "Values": [pool["dataSnapshotId"]]}])[
        "Volumes"
    ]


def test_the_next_up_finds_what_the_last_one_made_and_the_given_document_stays(account: Cloud) -> None:
    before = copy.deepcopy(STACK)
    said: list[str] = []
    first = with_given(STACK, said.append)
    assert len(said) == 6
    assert with_given(STACK, said.append) == first
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
    pools = with_given({"config": config}, print)["config"].get("trainyard:pools")
    assert pools == config.get("trainyard:pools")


def test_what_the_account_refuses_is_one_line(account: Cloud) -> None:
    wrong = copy.deepcopy(STACK)
    wrong["config"]["trainyard:network"]["privateSubnetIds"] = {"eu-north-9z": "subnet-0a"}
    with pytest.raises(GivenError, match="eu-north-9z"):
        with_given(wrong, print)
