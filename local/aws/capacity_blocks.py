"""Capacity blocks: offerings, purchases, and launches. A block is a reservation with a start and an end.

Blocks of any length are offered, in every zone that has the type. The start is as early as the end allows.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html, and for fleets
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-launch-instances-capacity-blocks-walkthrough.html
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from local.aws.ec2_utils import ec2_page, new_id, table
from local.aws.errors import ApiError
from local.aws.prices import hourly
from local.aws.reservations import add, moment, state, used

# The same term for the type of a reservation, of a market, of a fleet's capacity and of an instance's lifecycle.
BLOCK = "capacity-block"
# This long before a block's end, EC2 begins to terminate its instances and launches no more.
LAST_MINUTES = timedelta(minutes=30)


def _offered(backend: Any) -> dict[str, dict[str, Any]]:
    """Return the offerings of earlier answers, by id."""
    return table(backend, "blocks_offered")


def describe_capacity_block_offerings(self: Any) -> ActionResult:
    """Answer DescribeCapacityBlockOfferings: one offering per zone that has the type."""
    backend, name = self.ec2_backend, self._get_param("InstanceType")
    hours, count = int(self._get_param("CapacityDurationHours")), int(self._get_param("InstanceCount", 1))
    end = self._get_param("EndDateRange")
    first = moment(end) - timedelta(hours=hours) if end else datetime.now(UTC).replace(microsecond=0)
    zones = backend.describe_instance_type_offerings("availability-zone", {"instance-type": [name]})
    found = [
        {
            "CapacityBlockOfferingId": new_id("cb"),
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
    return ActionResult(ec2_page(self, "CapacityBlockOfferings", found))


def purchase_capacity_block(self: Any) -> ActionResult:
    """Answer PurchaseCapacityBlock. It is paid at once: scheduled, and active from its start."""
    offer = _offered(self.ec2_backend).pop(self._get_param("CapacityBlockOfferingId"))
    return add(
        self,
        **{key: offer[key] for key in ("InstanceType", "AvailabilityZone", "StartDate", "EndDate")},
        TotalInstanceCount=offer["InstanceCount"],
        InstanceMatchCriteria="targeted",
        EndDateType="limited",
        ReservationType=BLOCK,
    )


def check_launch(
    backend: Any, template: dict[str, Any], reservation: dict[str, Any] | None, asked: str
) -> None:
    """Check that no block prevents a fleet's launch by a template.

    A block that has not started, is full or has ended is a lack of capacity for a fleet (the walkthrough). For a block
    that has not started, RunInstances would answer InvalidCapacityReservationState.PendingActivation.

    Args:
        reservation: The template's target.
        asked: The fleet's default capacity type.

    Raises:
        ApiError: A block prevents it.
    """
    market = (template.get("InstanceMarketOptions") or {}).get("MarketType")
    is_block = reservation is not None and reservation["ReservationType"] == BLOCK
    if (is_block, market == BLOCK) != (asked == BLOCK,) * 2:
        raise ApiError(
            "InvalidParameterCombination",
            f"A Capacity Block needs a template with the market type {BLOCK} and the block's id, and a fleet with the"
            f" default target capacity type {BLOCK}.",
        )
    if reservation is None or not is_block:
        return
    identity, now = reservation["CapacityReservationId"], datetime.now(UTC)
    phase, over = state(reservation), moment(reservation["EndDate"]) - LAST_MINUTES <= now
    full = used(backend, identity) >= reservation["TotalInstanceCount"]
    if phase == "active" and not over and not full:
        return
    why = "it has no instance left" if phase == "active" and not over else f"it is {phase}"
    if phase == "active" and over:
        why = f"it ends in less than {LAST_MINUTES.seconds // 60} minutes"
    message = f"There is no capacity in the Capacity Block {identity}: {why}."
    raise ApiError("InsufficientInstanceCapacity", message)


def install() -> None:
    """Add the actions to moto's EC2."""
    for action in (describe_capacity_block_offerings, purchase_capacity_block):
        setattr(EC2Response, action.__name__, action)
