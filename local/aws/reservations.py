"""Capacity reservations, which moto lacks: create, describe and cancel."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.responses import EC2Response

from local.aws import placement_groups
from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import matches, requested_tags, table, tag_list
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


def launch_error(backend: Any, reservation_id: str, instance_type: str, zone: str) -> tuple[str, str] | None:
    """Return the error code and message if a targeted launch into a reservation can't be served."""
    found = reservations(backend).get(reservation_id)
    if found is None or state(found) != "active":
        return (
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation '{reservation_id}' does not exist",
        )
    if found["InstanceType"] != instance_type or found["AvailabilityZone"] != zone:
        return (
            "ReservationCapacityIncompatible",
            f"{reservation_id} is for {found['InstanceType']} in {found['AvailabilityZone']}, "
            f"not {instance_type} in {zone}",
        )
    return None


def room(backend: Any, reservation_id: str) -> int:
    """Return how many more instances can be launched into a reservation."""
    total: int = reservations(backend)[reservation_id]["TotalInstanceCount"]
    return max(0, total - used(backend, reservation_id))


def exceeded(reservation_id: str) -> tuple[str, str]:
    """Return the error code and message for a launch of more instances than a reservation has left."""
    return (
        "ReservationCapacityExceeded",
        f"The capacity reservation {reservation_id} has no instance left",
    )


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


def create_capacity_reservation(self: Any) -> ActionResult:
    """Answer CreateCapacityReservation: active at once."""
    self.error_on_dryrun()
    reservation_id = "cr-" + secrets.token_hex(9)[:17]
    zone = self._get_param("AvailabilityZone")
    document = {
        "CapacityReservationId": reservation_id,
        "OwnerId": ACCOUNT_ID,
        "CapacityReservationArn": f"arn:aws:ec2:{self.region}:{ACCOUNT_ID}:capacity-reservation/{reservation_id}",
        "InstanceType": self._get_param("InstanceType"),
        "InstancePlatform": self._get_param("InstancePlatform"),
        "AvailabilityZone": zone,
        "Tenancy": self._get_param("Tenancy", "default"),
        "TotalInstanceCount": int(self._get_param("InstanceCount")),
        "InstanceMatchCriteria": self._get_param("InstanceMatchCriteria", "open"),
        "EndDateType": self._get_param("EndDateType", "unlimited"),
        "ReservationType": "default",
        "State": "active",
        "CreateDate": utcnow(),
        "StartDate": utcnow(),
        "tags": requested_tags(self._get_param("TagSpecifications")).get("capacity-reservation", {}),
    }
    for key in ("EndDate", "PlacementGroupArn"):
        if self._get_param(key):
            document[key] = self._get_param(key)
    reservations(self.ec2_backend)[reservation_id] = document
    return ActionResult({"CapacityReservation": shown(self.ec2_backend, document)})


def describe_capacity_reservations(self: Any) -> ActionResult:
    """Answer DescribeCapacityReservations, by id and filter."""
    backend, ids = self.ec2_backend, self._get_param("CapacityReservationIds", [])
    store = reservations(backend)
    missing = [i for i in ids if i not in store]
    if missing:
        raise ApiError(
            "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{missing[0]}' does not exist"
        )
    names = {
        "state": "State",
        "instance-type": "InstanceType",
        "owner-id": "OwnerId",
        "availability-zone": "AvailabilityZone",
        "instance-match-criteria": "InstanceMatchCriteria",
    }
    filters = self._filters_from_querystring()
    found = [r for i, r in store.items() if (not ids or i in ids) and matches(r, r["tags"], filters, names)]
    return ActionResult({"CapacityReservations": [shown(backend, r) for r in found]})


def cancel_capacity_reservation(self: Any) -> ActionResult:
    """Answer CancelCapacityReservation. Its instances continue as on-demand instances."""
    reservation_id = self._get_param("CapacityReservationId")
    found = reservations(self.ec2_backend).get(reservation_id)
    if found is None:
        raise ApiError(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation '{reservation_id}' does not exist",
        )
    found["State"] = "cancelled"
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
