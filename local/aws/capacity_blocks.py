"""Capacity blocks: what is offered, and buying one. A block is a reservation with a fixed start and end.

AWS offers up to 182 days; here any length is, in every zone that has the type, from a start as near as the end allows.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.responses import EC2Response

from local.aws.account import ACCOUNT_ID
from local.aws.errors import ApiError
from local.aws.prices import hourly
from local.aws.reservations import moment, reservations, shown, tags_of

# The word for it: of a reservation's type, of a market, of a fleet's capacity and of an instance's lifecycle.
BLOCK = "capacity-block"


def _offered(backend: Any) -> dict[str, dict[str, Any]]:
    """Offerings that were shown, by id."""
    if not hasattr(backend, "trainyard_blocks_offered"):
        backend.trainyard_blocks_offered = {}
    store: dict[str, dict[str, Any]] = backend.trainyard_blocks_offered
    return store


def describe_capacity_block_offerings(self: Any) -> ActionResult:
    """DescribeCapacityBlockOfferings: one per zone that has the type."""
    backend, name = self.ec2_backend, self._get_param("InstanceType")
    hours, count = int(self._get_param("CapacityDurationHours")), int(self._get_param("InstanceCount", 1))
    start, end = self._get_param("StartDateRange"), self._get_param("EndDateRange")
    first = moment(start) if start else datetime.now(UTC).replace(microsecond=0)
    if end:
        first = moment(end) - timedelta(hours=hours)
    zones = backend.describe_instance_type_offerings("availability-zone", {"instance-type": [name]})
    found = [
        {
            "CapacityBlockOfferingId": "cb-" + secrets.token_hex(9)[:17],
            "InstanceType": name,
            "AvailabilityZone": zone["Location"],
            "InstanceCount": count,
            "StartDate": first,
            "EndDate": first + timedelta(hours=hours),
            "CapacityBlockDurationHours": hours,
            "UpfrontFee": f"{hourly(name) * hours * count:.2f}",
            "CurrencyCode": "USD",
            "Tenancy": "default",
        }
        for zone in zones
    ]
    _offered(backend).update({offer["CapacityBlockOfferingId"]: offer for offer in found})
    return ActionResult({"CapacityBlockOfferings": found})


def purchase_capacity_block(self: Any) -> ActionResult:
    """PurchaseCapacityBlock: paid at once, so that it is scheduled, and active from its start."""
    self.error_on_dryrun()
    offer = _offered(self.ec2_backend).pop(self._get_param("CapacityBlockOfferingId"), None)
    if offer is None:
        raise ApiError(
            "InvalidCapacityBlockOfferingId.NotFound", "The capacity block offering does not exist."
        )
    reservation_id = "cr-" + secrets.token_hex(9)[:17]
    document = {
        "CapacityReservationId": reservation_id,
        "OwnerId": ACCOUNT_ID,
        "CapacityReservationArn": f"arn:aws:ec2:{self.region}:{ACCOUNT_ID}:capacity-reservation/{reservation_id}",
        "InstanceType": offer["InstanceType"],
        "InstancePlatform": self._get_param("InstancePlatform"),
        "AvailabilityZone": offer["AvailabilityZone"],
        "Tenancy": "default",
        "TotalInstanceCount": offer["InstanceCount"],
        "InstanceMatchCriteria": "targeted",
        "EndDateType": "limited",
        "EndDate": offer["EndDate"],
        "StartDate": offer["StartDate"],
        "ReservationType": BLOCK,
        "State": "active",
        "CreateDate": utcnow(),
        "tags": tags_of(self, "capacity-reservation"),
    }
    reservations(self.ec2_backend)[reservation_id] = document
    return ActionResult({"CapacityReservation": shown(self.ec2_backend, document)})


def install() -> None:
    """Add the actions to moto's EC2."""
    for action in (describe_capacity_block_offerings, purchase_capacity_block):
        setattr(EC2Response, action.__name__, action)
