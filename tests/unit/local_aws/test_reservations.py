"""What CreateCapacityReservation refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud

TYPE = "g5.12xlarge"
INVALID = "InvalidParameterValue"
DAY = timedelta(days=1)


def reserve(cloud: Cloud, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "InstanceType": TYPE,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": "us-west-2a",
        "InstanceCount": 2,
        **changes,
    }
    made: dict[str, Any] = cloud.client("ec2").create_capacity_reservation(**arguments)["CapacityReservation"]
    return made


def refused(cloud: Cloud, code: str, **changes: Any) -> str:
    with pytest.raises(ClientError) as error:
        reserve(cloud, **changes)
    answer = error.value.response["Error"]
    assert answer["Code"] == code, answer
    return str(answer["Message"])


def test_reservation_of_an_unknown_type_is_refused(cloud: Cloud) -> None:
    refused(cloud, INVALID, InstanceType="g5.13xlarge")


def test_reservation_of_a_zone_without_the_type_is_refused(cloud: Cloud) -> None:
    offers = cloud.client("ec2").describe_instance_type_offerings(LocationType="availability-zone")
    zones: dict[str, set[str]] = {}
    for each in offers["InstanceTypeOfferings"]:
        zones.setdefault(each["InstanceType"], set()).add(each["Location"])
    kind = next(kind for kind, there in sorted(zones.items()) if "us-west-2a" not in there)
    message = refused(cloud, "Unsupported", InstanceType=kind)
    assert all(zone in message for zone in zones[kind])


def test_reservation_without_capacity_is_refused(cloud: Cloud) -> None:
    cloud.call("PUT", "faults", {"faults": [{"code": "InsufficientInstanceCapacity", "available": 3}]})
    assert TYPE in refused(cloud, "InsufficientInstanceCapacity", InstanceCount=4)
    reserve(cloud)
    refused(cloud, "InsufficientInstanceCapacity")
    reserve(cloud, InstanceCount=1)


def test_reservations_are_searched_and_come_in_pages(cloud: Cloud) -> None:
    ec2, end = cloud.client("ec2"), datetime.now(UTC) + DAY
    made = [
        reserve(cloud)["CapacityReservationId"],
        reserve(cloud, InstanceType="g5.xlarge")["CapacityReservationId"],
    ]
    made.append(reserve(cloud, EndDateType="limited", EndDate=end)["CapacityReservationId"])
    expire(made[2])

    def found(name: str, *values: str) -> list[str]:
        answer = ec2.describe_capacity_reservations(Filters=[{"Name": name, "Values": list(values)}])
        return [each["CapacityReservationId"] for each in answer["CapacityReservations"]]

    assert found("instance-type", "g5.12*") == [made[0], made[2]]
    assert found("availability-zone", "us-west-2?") == made
    assert found("state", "active") == made[:2]
    assert found("state", "expired") == made[2:]
    pages = list(
        ec2.get_paginator("describe_capacity_reservations").paginate(PaginationConfig={"PageSize": 2})
    )
    assert [len(page["CapacityReservations"]) for page in pages] == [2, 1]


def expire(identity: str) -> None:
    """Let a reservation be over."""
    from moto.ec2.models import ec2_backends

    from local.aws.reservations import reservations

    reservations(ec2_backends["123456789012"]["us-west-2"])[identity]["EndDate"] = datetime.now(UTC) - DAY
