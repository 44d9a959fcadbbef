"""CreateFleet into a capacity block: only while it lasts, only what it holds, only when all say so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.aws.account import ACCOUNT_ID
from tests.unit.emulator import REGION, Cloud
from tests.unit.local_aws.test_fleets import Launcher

TYPE, ZONE = "p5.48xlarge", "us-west-2b"
HOUR = timedelta(hours=1)


class Block:
    """A block that was bought, and a launch template into it as Karpenter makes them."""

    def __init__(self, launcher: Launcher, count: int = 2) -> None:
        self.launcher, self.ec2 = launcher, launcher.ec2
        offers = self.ec2.describe_capacity_block_offerings(
            InstanceType=TYPE, InstanceCount=count, CapacityDurationHours=48
        )["CapacityBlockOfferings"]
        offer = next(each for each in offers if each["AvailabilityZone"] == ZONE)
        bought = self.ec2.purchase_capacity_block(
            CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
        )["CapacityReservation"]
        self.identity = bought["CapacityReservationId"]
        self.template = self.into(self.identity)

    def into(self, identity: str, **more: Any) -> Any:
        market = {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
        target = {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationId": identity},
        }
        data = {"CapacityReservationSpecification": target, **market, **more}
        name = f"into-{identity}-{len(more)}"
        return self.launcher.make_template(name, **{k: v for k, v in data.items() if v is not None})

    def lasts(self, start: timedelta, end: timedelta) -> None:
        """Let it last from and to these times from now: in the emulator nobody waits for a block to begin."""
        from moto.ec2.models import ec2_backends

        from local.aws.reservations import reservations

        now = datetime.now(UTC)
        held = reservations(ec2_backends[ACCOUNT_ID][REGION])[self.identity]
        held["StartDate"], held["EndDate"] = now + start, now + end

    def fleet(self, template: Any = None, capacity: str = "capacity-block", **more: Any) -> Any:
        return self.launcher.fleet(
            zones="b", capacity=capacity, types=(TYPE,), template=template or self.template, **more
        )

    def state(self) -> str:
        found = self.ec2.describe_capacity_reservations(CapacityReservationIds=[self.identity])
        return str(found["CapacityReservations"][0]["State"])


@pytest.fixture
def block(cloud: Cloud) -> Block:
    return Block(Launcher(cloud))


def codes(fleet: Any) -> list[str]:
    return [each["ErrorCode"] for each in fleet.get("Errors", [])]


def test_a_machine_is_launched_into_an_active_block_and_says_so(block: Block) -> None:
    fleet = block.fleet()
    assert codes(fleet) == []
    assert fleet["Instances"][0]["Lifecycle"] == "capacity-block"
    instance = block.launcher.instance(fleet["Instances"][0]["InstanceIds"][0])
    assert instance["InstanceLifecycle"] == "capacity-block"
    assert instance["CapacityReservationId"] == block.identity
    assert instance["Placement"]["AvailabilityZone"] == ZONE
    assert block.launcher.cloud.call("GET", "instances?cluster=main")[0][0]["capacityType"] == "reserved"


@pytest.mark.parametrize(
    ("start", "end", "state", "says"),
    [
        (HOUR, 49 * HOUR, "scheduled", "it is scheduled"),
        (-48 * HOUR, -HOUR, "expired", "it is expired"),
        (-48 * HOUR, timedelta(minutes=20), "active", "it ends in less than 30 minutes"),
    ],
)
def test_a_block_gives_machines_from_its_start_to_half_an_hour_before_its_end(
    block: Block, start: timedelta, end: timedelta, state: str, says: str
) -> None:
    block.lasts(start, end)
    assert block.state() == state
    fleet = block.fleet()
    assert fleet["Instances"] == []
    assert codes(fleet) == ["InsufficientInstanceCapacity"]
    assert says in fleet["Errors"][0]["ErrorMessage"]
    assert fleet["Errors"][0]["Lifecycle"] == "capacity-block"
    # EC2 knows nothing of the ten minutes more at which Karpenter begins to drain.
    for left in (HOUR, timedelta(minutes=31)):
        block.lasts(-HOUR, left)
        assert len(block.fleet()["Instances"]) == 1


def test_a_block_gives_as_many_machines_as_it_holds_and_one_for_each_that_ended(block: Block) -> None:
    launched = [block.fleet() for _ in range(3)]
    assert [len(each["Instances"]) for each in launched] == [1, 1, 0]
    assert codes(launched[2]) == ["InsufficientInstanceCapacity"]
    block.ec2.terminate_instances(InstanceIds=launched[0]["Instances"][0]["InstanceIds"])
    assert len(block.fleet()["Instances"]) == 1


def test_a_fleet_that_wants_more_gets_what_there_is(block: Block) -> None:
    assert len(block.fleet(machines=5)["Instances"]) == 2


def test_template_block_and_fleet_must_all_say_that_it_is_a_block(block: Block) -> None:
    unmarked = block.into(block.identity, InstanceMarketOptions=None)
    assert codes(block.fleet(template=unmarked)) == ["InvalidParameterCombination"]
    assert codes(block.fleet(capacity="on-demand")) == ["InvalidParameterCombination"]
    assert codes(block.fleet(template=block.launcher.template)) == ["InvalidParameterCombination"]
    odcr = block.ec2.create_capacity_reservation(
        InstanceType=TYPE, InstancePlatform="Linux/UNIX", AvailabilityZone=ZONE, InstanceCount=1
    )["CapacityReservation"]["CapacityReservationId"]
    assert codes(block.fleet(template=block.into(odcr))) == ["InvalidParameterCombination"]


def test_a_block_that_does_not_exist_is_not_found(block: Block) -> None:
    fleet = block.fleet(template=block.into("cr-0123456789abcdef0"))
    assert codes(fleet) == ["InvalidCapacityReservationId.NotFound"]


def test_a_block_is_of_one_type_in_one_zone(block: Block) -> None:
    fleet = block.launcher.fleet(
        zones="b", capacity="capacity-block", types=("p4d.24xlarge",), template=block.template
    )
    assert codes(fleet) == ["ReservationCapacityIncompatible"]


def test_request_that_the_emulator_cannot_read_is_refused_once(block: Block) -> None:
    """Not an HTTP 500: SDKs would retry that."""
    with pytest.raises(ClientError) as refused:
        block.ec2.purchase_capacity_block(CapacityBlockOfferingId="cb-0", InstancePlatform="Linux/UNIX")
    answer = refused.value.response
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]) == (400, "ValidationError")
    assert "PurchaseCapacityBlock: KeyError" in answer["Error"]["Message"]
