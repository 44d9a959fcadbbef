"""Capacity reservations and placement groups, which moto does not have: create, describe and cancel or delete."""

from __future__ import annotations

import secrets
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response

from local.aws.account import ACCOUNT_ID
from local.aws.errors import ApiError


def _reservations(backend: Any) -> dict[str, dict[str, Any]]:
    if not hasattr(backend, "trainyard_reservations"):
        backend.trainyard_reservations = {}
    store: dict[str, dict[str, Any]] = backend.trainyard_reservations
    return store


def _groups(backend: Any) -> dict[str, dict[str, Any]]:
    if not hasattr(backend, "trainyard_placement_groups"):
        backend.trainyard_placement_groups = {}
    store: dict[str, dict[str, Any]] = backend.trainyard_placement_groups
    return store


def _used(backend: Any, reservation_id: str) -> int:
    return sum(
        getattr(i, "capacity_reservation_id", None) == reservation_id and i.state in ("pending", "running")
        for i in backend.all_instances()
    )


def launch_error(backend: Any, reservation_id: str, instance_type: str, zone: str) -> tuple[str, str] | None:
    """Error code and message where a targeted launch into a reservation cannot be served."""
    found = _reservations(backend).get(reservation_id)
    if found is None or found["State"] != "active":
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
    if _used(backend, reservation_id) >= found["TotalInstanceCount"]:
        return (
            "ReservationCapacityExceeded",
            f"The capacity reservation {reservation_id} has no instance left",
        )
    return None


def _shown(backend: Any, reservation: dict[str, Any]) -> dict[str, Any]:
    left = reservation["TotalInstanceCount"] - _used(backend, reservation["CapacityReservationId"])
    tags = [{"Key": k, "Value": v} for k, v in reservation["tags"].items()]
    return {**reservation, "AvailableInstanceCount": max(0, left), "Tags": tags}


def _tags(response: Any, kind: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for specification in response._get_param("TagSpecifications", []) or []:
        if specification.get("ResourceType") == kind:
            tags.update({t["Key"]: t.get("Value", "") for t in specification.get("Tags", [])})
    return tags


def _matches(item: dict[str, Any], filters: dict[str, list[str]], names: dict[str, str]) -> bool:
    for name, values in filters.items():
        if name.startswith("tag:"):
            if item["tags"].get(name[4:]) not in values and "*" not in values:
                return False
        elif name == "tag-key":
            if not set(values) & set(item["tags"]):
                return False
        elif name not in names:
            raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
        elif str(item.get(names[name])) not in values:
            return False
    return True


def create_capacity_reservation(self: Any) -> ActionResult:
    """CreateCapacityReservation: active at once."""
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
        "tags": _tags(self, "capacity-reservation"),
    }
    if self._get_param("EndDate"):
        document["EndDate"] = self._get_param("EndDate")
    _reservations(self.ec2_backend)[reservation_id] = document
    return ActionResult({"CapacityReservation": _shown(self.ec2_backend, document)})


def describe_capacity_reservations(self: Any) -> ActionResult:
    """DescribeCapacityReservations, by id and filter."""
    backend, ids = self.ec2_backend, self._get_param("CapacityReservationIds", [])
    store = _reservations(backend)
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
    found = [r for i, r in store.items() if (not ids or i in ids) and _matches(r, filters, names)]
    return ActionResult({"CapacityReservations": [_shown(backend, r) for r in found]})


def cancel_capacity_reservation(self: Any) -> ActionResult:
    """CancelCapacityReservation: instances in it run on as plain on-demand ones."""
    reservation_id = self._get_param("CapacityReservationId")
    found = _reservations(self.ec2_backend).get(reservation_id)
    if found is None:
        raise ApiError(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation '{reservation_id}' does not exist",
        )
    found["State"] = "cancelled"
    return ActionResult({"Return": True})


def create_placement_group(self: Any) -> ActionResult:
    """CreatePlacementGroup."""
    self.error_on_dryrun()
    name, group_id = self._get_param("GroupName"), "pg-" + secrets.token_hex(9)[:17]
    if name in _groups(self.ec2_backend):
        raise ApiError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    document = {
        "GroupName": name,
        "GroupId": group_id,
        "GroupArn": f"arn:aws:ec2:{self.region}:{ACCOUNT_ID}:placement-group/{name}",
        "State": "available",
        "Strategy": self._get_param("Strategy", "cluster"),
        "PartitionCount": self._get_param("PartitionCount"),
        "tags": _tags(self, "placement-group"),
    }
    _groups(self.ec2_backend)[name] = document
    return ActionResult({"PlacementGroup": _group_shown(document)})


def _group_shown(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "Tags": [{"Key": k, "Value": v} for k, v in document["tags"].items()]}


def describe_placement_groups(self: Any) -> ActionResult:
    """DescribePlacementGroups, by name, id and filter."""
    names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
    store = _groups(self.ec2_backend)
    for name in names:
        if name not in store:
            raise ApiError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    known = {"group-name": "GroupName", "state": "State", "strategy": "Strategy", "group-arn": "GroupArn"}
    filters = self._filters_from_querystring()
    found = [
        g
        for n, g in store.items()
        if (not names or n in names) and (not ids or g["GroupId"] in ids) and _matches(g, filters, known)
    ]
    return ActionResult({"PlacementGroups": [_group_shown(g) for g in found]})


def delete_placement_group(self: Any) -> ActionResult:
    """DeletePlacementGroup; refused while an instance is in it."""
    name = self._get_param("GroupName")
    if name not in _groups(self.ec2_backend):
        raise ApiError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    if any(i.placement.group_name == name and i.state == "running" for i in self.ec2_backend.all_instances()):
        raise ApiError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use.")
    del _groups(self.ec2_backend)[name]
    return ActionResult(None)


def install() -> None:
    """Add the actions to moto's EC2."""
    for action in (
        create_capacity_reservation,
        describe_capacity_reservations,
        cancel_capacity_reservation,
        create_placement_group,
        describe_placement_groups,
        delete_placement_group,
    ):
        setattr(EC2Response, action.__name__, action)
    reset = EC2Backend.reset

    def reset_all(self: Any) -> None:
        self.__dict__.pop("trainyard_reservations", None)
        self.__dict__.pop("trainyard_placement_groups", None)
        reset(self)

    EC2Backend.reset = reset_all
