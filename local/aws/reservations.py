"""Capacity reservations, which moto lacks: create, describe and cancel."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from local.aws import faults, placement_groups
from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import (
    count_running,
    ec2_page,
    matches,
    new_id,
    requested_tags,
    table,
    tag_list,
)
from local.aws.errors import ApiError


def reservations(backend: Any) -> dict[str, dict[str, Any]]:
    """Return the reservations of a region by id."""
    return table(backend, "reservations")


def used(backend: Any, reservation_id: str) -> int:
    """Return how many instances run in a reservation."""
    return sum(
        getattr(i, "capacity_reservation_id", None) == reservation_id and i.state in ("pending", "running")
        for i in backend.all_instances()
    )


def find(backend: Any, reservation_id: str) -> dict[str, Any]:
    """Return a reservation.

    Raises:
        ApiError: It does not exist.
    """
    found = reservations(backend).get(reservation_id)
    if found is None:
        raise _unknown(reservation_id)
    return found


def check_launch(reservation: dict[str, Any], instance_type: str, zone: str) -> None:
    """Raise ApiError if a targeted launch into a reservation can't be served."""
    name = reservation["CapacityReservationId"]
    if state(reservation) != "active":
        raise _unknown(name)
    if reservation["InstanceType"] != instance_type or reservation["AvailabilityZone"] != zone:
        raise ApiError(
            "ReservationCapacityIncompatible",
            f"{name} is for {reservation['InstanceType']} in {reservation['AvailabilityZone']}, "
            f"not {instance_type} in {zone}",
        )


def _unknown(name: str) -> ApiError:
    message = f"The capacity reservation '{name}' does not exist"
    return ApiError("InvalidCapacityReservationId.NotFound", message)


def room(backend: Any, reservation_id: str) -> int:
    """Return how many more instances can be launched into a reservation."""
    total: int = reservations(backend)[reservation_id]["TotalInstanceCount"]
    return max(0, total - used(backend, reservation_id))


def state(reservation: dict[str, Any]) -> str:
    """Return the state at the current time: scheduled before the start, expired after the end."""
    now = datetime.now(UTC)
    if reservation["State"] != "active":
        return str(reservation["State"])
    if moment(reservation["StartDate"]) > now:
        return "scheduled"
    return "expired" if "EndDate" in reservation and moment(reservation["EndDate"]) <= now else "active"


def moment(value: Any) -> datetime:
    """Return a time, from a request or from this module, with its zone."""
    text = str(value).replace("Z", "+00:00")
    parsed = value if isinstance(value, datetime) else datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def shown(backend: Any, reservation: dict[str, Any]) -> dict[str, Any]:
    left = reservation["TotalInstanceCount"] - used(backend, reservation["CapacityReservationId"])
    return {
        **reservation,
        "State": state(reservation),
        "AvailableInstanceCount": max(0, left),
        "Tags": tag_list(reservation["tags"]),
    }


def _check_place(backend: Any, kind: str, zone: str) -> None:
    """Check that the zone has the instance type. The sentences are those of RunInstances.

    Raises:
        ApiError: There is no such type, or not in this zone.
    """
    if kind not in INSTANCE_TYPES:
        raise ApiError("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    offers = backend.describe_instance_type_offerings("availability-zone", {"instance-type": [kind]})
    zones = sorted(offer["Location"] for offer in offers)
    if zone not in zones:
        raise ApiError(
            "Unsupported",
            f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone})."
            " Please retry your request by not specifying an Availability Zone or choosing"
            f" {', '.join(zones)}.",
        )


def _check_capacity(backend: Any, kind: str, zone: str, count: int) -> None:
    """Refuse a reservation for which the fault plan has no on-demand capacity left beside other reservations.

    Raises:
        ApiError: The code and message of the plan.
    """

    def taken(fault: faults.Fault) -> int:
        return count_running(backend, fault) + sum(
            room(backend, r["CapacityReservationId"])
            for r in reservations(backend).values()
            if (r["ReservationType"], state(r)) == ("default", "active")
            and fault.matches(r["InstanceType"], r["AvailabilityZone"], "on-demand")
        )

    free, fault = faults.plan().launch_room(kind, zone, "on-demand", count, taken)
    if fault is not None and free < count:
        raise ApiError(fault.code, fault.text(kind, zone))


def add(response: Any, **own: Any) -> ActionResult:
    """Add the reservation or capacity block that a request asks for, and answer with it.

    Args:
        response: moto's, with the request.
        own: The parts of the document in which the two kinds differ.
    """
    name = new_id("cr")
    document = {
        "CapacityReservationId": name,
        "OwnerId": ACCOUNT_ID,
        "CapacityReservationArn": f"arn:aws:ec2:{response.region}:{ACCOUNT_ID}:capacity-reservation/{name}",
        "InstancePlatform": response._get_param("InstancePlatform"),
        "Tenancy": "default",
        "State": "active",
        "CreateDate": utcnow(),
        "tags": requested_tags(response, "capacity-reservation"),
        **own,
    }
    reservations(response.ec2_backend)[name] = document
    return ActionResult({"CapacityReservation": shown(response.ec2_backend, document)})


def create_capacity_reservation(self: Any) -> ActionResult:
    """Answer CreateCapacityReservation: active at once."""
    kind, zone = self._get_param("InstanceType"), self._get_param("AvailabilityZone")
    count = int(self._get_param("InstanceCount"))
    _check_place(self.ec2_backend, kind, zone)
    _check_capacity(self.ec2_backend, kind, zone, count)
    optional = {key: self._get_param(key) for key in ("EndDate", "PlacementGroupArn")}
    return add(
        self,
        InstanceType=kind,
        AvailabilityZone=zone,
        TotalInstanceCount=count,
        InstanceMatchCriteria=self._get_param("InstanceMatchCriteria", "open"),
        EndDateType=self._get_param("EndDateType", "unlimited"),
        ReservationType="default",
        StartDate=utcnow(),
        **{key: value for key, value in optional.items() if value},
    )


def describe_capacity_reservations(self: Any) -> ActionResult:
    """Answer DescribeCapacityReservations, by id and filter."""
    backend, ids = self.ec2_backend, self._get_param("CapacityReservationIds", [])
    asked = [find(backend, each) for each in ids] or reservations(backend).values()
    names = {
        "state": "State",
        "instance-type": "InstanceType",
        "owner-id": "OwnerId",
        "availability-zone": "AvailabilityZone",
        "instance-match-criteria": "InstanceMatchCriteria",
    }
    filters = self._filters_from_querystring()
    found = [r for r in (shown(backend, each) for each in asked) if matches(r, r["tags"], filters, names)]
    return ActionResult(ec2_page(self, "CapacityReservations", found))


def cancel_capacity_reservation(self: Any) -> ActionResult:
    """Answer CancelCapacityReservation. Its instances continue as on-demand instances."""
    find(self.ec2_backend, self._get_param("CapacityReservationId"))["State"] = "cancelled"
    return ActionResult({"Return": True})


def install() -> None:
    """Add the actions to moto's EC2, and those of placement groups, in which reservations may be."""
    placement_groups.install()
    for action in (
        create_capacity_reservation,
        describe_capacity_reservations,
        cancel_capacity_reservation,
    ):
        setattr(EC2Response, action.__name__, action)
