"""Placement groups, which moto lacks: create, describe, tag and delete, and errors of launches into one.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-groups.html
"""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2 import utils
from moto.ec2.responses import EC2Response

from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import matches, new_id, requested_tags, table, tag_list
from local.aws.errors import ApiError

KIND = "placement-group"
PREFIX = "pg"
# In these states, an instance is still in its group.
INSIDE = ("pending", "running", "stopping", "stopped")
FILTERS = {
    "group-name": "GroupName",
    "group-arn": "GroupArn",
    "state": "State",
    "strategy": "Strategy",
}


def groups(backend: Any) -> dict[str, dict[str, Any]]:
    """Return the groups of a region by name."""
    return table(backend, "placement_groups")


def of_launch(backend: Any, data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the group that a launch template's data names; None if it names none.

    Raises:
        ApiError: The group does not exist.
    """
    group_id = (data.get("Placement") or {}).get("GroupId")
    if not group_id:
        return None
    for group in groups(backend).values():
        if group_id == group["GroupId"]:
            return group
    raise _unknown(group_id)


def check_launch(backend: Any, data: dict[str, Any], reservation: dict[str, Any] | None) -> None:
    """Raise ApiError if a launch into a group can't be served.

    The instances of a reservation are in the place of the reservation, so they can't launch into another cluster
    placement group (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html).
    """
    group = of_launch(backend, data)
    if group is None or reservation is None or group["Strategy"] != "cluster":
        return
    if reservation.get("PlacementGroupArn") != group["GroupArn"]:
        raise ApiError(
            "InsufficientInstanceCapacity",
            f"The capacity reservation {reservation['CapacityReservationId']} is not in the placement group "
            f"'{group['GroupName']}'.",
        )


def _unknown(name: str) -> ApiError:
    return ApiError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


def _shown(backend: Any, group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "Tags": tag_list(backend.tags.get(group["GroupId"], {}))}


def create_placement_group(self: Any) -> ActionResult:
    """Answer CreatePlacementGroup: available at once."""
    store, name = groups(self.ec2_backend), self._get_param("GroupName")
    if name in store:
        raise ApiError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    store[name] = {
        "GroupName": name,
        "GroupId": new_id(PREFIX),
        "GroupArn": f"arn:aws:ec2:{self.region}:{ACCOUNT_ID}:{KIND}/{name}",
        "State": "available",
        "Strategy": self._get_param("Strategy", "cluster"),
    }
    self.ec2_backend.create_tags([store[name]["GroupId"]], requested_tags(self, KIND))
    return ActionResult({"PlacementGroup": _shown(self.ec2_backend, store[name])})


def describe_placement_groups(self: Any) -> ActionResult:
    """Answer DescribePlacementGroups, by name, id and filter."""
    backend = self.ec2_backend
    names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
    store, known_ids = groups(backend), {group["GroupId"] for group in groups(backend).values()}
    for missing in (*(n for n in names if n not in store), *(i for i in ids if i not in known_ids)):
        raise _unknown(missing)
    filters = self._filters_from_querystring()
    found = [
        group
        for name, group in store.items()
        if (not names or name in names)
        and (not ids or group["GroupId"] in ids)
        and matches(group, backend.tags.get(group["GroupId"], {}), filters, FILTERS)
    ]
    return ActionResult({"PlacementGroups": [_shown(backend, group) for group in found]})


def delete_placement_group(self: Any) -> ActionResult:
    """Answer DeletePlacementGroup. It is refused while an instance is in the group."""
    store, name = groups(self.ec2_backend), self._get_param("GroupName")
    if name not in store:
        raise _unknown(name)
    group_id = store[name]["GroupId"]
    for instance in self.ec2_backend.all_instances():
        if instance.state in INSIDE and getattr(instance.placement, "group_id", None) == group_id:
            raise ApiError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use.")
    del store[name]
    self.ec2_backend.tags.pop(group_id, None)
    return ActionResult(None)


def install() -> None:
    """Add the actions to moto's EC2."""
    for action in (create_placement_group, describe_placement_groups, delete_placement_group):
        setattr(EC2Response, action.__name__, action)
    # CreateTags accepts only ids with known prefixes.
    utils.EC2_RESOURCE_TO_PREFIX[KIND] = PREFIX
    utils.EC2_PREFIX_TO_RESOURCE[PREFIX] = KIND
    # A filter of DescribeInstances that moto lacks.
    utils.filter_dict_attribute_mapping["placement-group-name"] = "placement.group_name"
