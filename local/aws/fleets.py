"""CreateFleet: the cheapest offer first, with the failures of the plan in `local.aws.faults`.

moto always has capacity, and does not know capacity blocks. As on AWS, the call itself succeeds, a fleet gets as many
instances as there are, and `Errors` lists what could not be launched.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.fleets import Fleet
from moto.ec2.responses.fleets import Fleets
from moto.ec2.utils import random_fleet_id

from local.aws import capacity_blocks, faults, placement_groups, prices, reservations
from local.aws.ec2_utils import count_running
from local.aws.errors import ApiError


def _template_data(backend: Any, specification: dict[str, Any]) -> dict[str, Any]:
    if specification.get("LaunchTemplateId"):
        template = backend.get_launch_template(specification["LaunchTemplateId"])
    else:
        template = backend.get_launch_template_by_name(specification["LaunchTemplateName"])
    data: dict[str, Any] = template.get_version(specification.get("Version", "$Default")).data
    return data


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One override of a fleet's request: the place and type in which its instances may be launched."""

    config: dict[str, Any]
    override: dict[str, Any]
    data: dict[str, Any]
    instance_type: str
    zone: str
    reservation_id: str
    asked: str

    @property
    def kind(self) -> str:
        """Its capacity type in Karpenter's terms."""
        return "reserved" if self.reservation_id else self.asked

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return this error as the fleet reports it for the offer."""
        return {
            "LaunchTemplateAndOverrides": {
                "LaunchTemplateSpecification": self.config["LaunchTemplateSpecification"],
                "Overrides": self.override,
            },
            "Lifecycle": self.asked,
            "ErrorCode": error.code,
            "ErrorMessage": error.message,
        }


def _offers(backend: Any, config: dict[str, Any], asked: str) -> list[Offer]:
    """Return the offers of one launch template, the cheapest first, as the strategy `lowest-price` orders them."""
    data = _template_data(backend, config["LaunchTemplateSpecification"])
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    found = [
        Offer(
            config=config,
            override=override,
            data=data,
            instance_type=override["InstanceType"],
            zone=backend.get_subnet(override["SubnetId"]).availability_zone,
            reservation_id=target.get("CapacityReservationId") or "",
            asked=asked,
        )
        for override in config["Overrides"]
    ]
    return sorted(found, key=lambda offer: prices.hourly(offer.instance_type))


def _check(backend: Any, offer: Offer) -> None:
    """Raise ApiError if something other than capacity prevents the launch of any instance."""
    reservation = reservations.find(backend, offer.reservation_id) if offer.reservation_id else None
    capacity_blocks.check_launch(backend, offer.data, reservation, offer.asked)
    if reservation is not None:
        reservations.check_launch(reservation, offer.instance_type, offer.zone)
    placement_groups.check_launch(backend, offer.data, reservation)


def _room(
    backend: Any, offer: Offer, wanted: int, shares: list[tuple[Offer, int]]
) -> tuple[int, ApiError | None]:
    """Return how many of the `wanted` instances this offer can give beside the `shares` of others, and why no more."""
    if offer.reservation_id:
        taken = sum(number for other, number in shares if other.reservation_id == offer.reservation_id)
        free = max(0, reservations.room(backend, offer.reservation_id) - taken)
        if free < wanted:
            message = f"The capacity reservation {offer.reservation_id} has no instance left"
            return free, ApiError("ReservationCapacityExceeded", message)

    def count(fault: faults.Fault) -> int:
        beside = sum(n for each, n in shares if fault.matches(each.instance_type, each.zone, each.kind))
        return count_running(backend, fault) + beside

    room, fault = faults.plan().launch_room(offer.instance_type, offer.zone, offer.kind, wanted, count)
    return room, ApiError(fault.code, fault.text(offer.instance_type, offer.zone)) if fault else None


def _share(
    backend: Any, configs: list[dict[str, Any]], asked: str, wanted: int
) -> tuple[list[tuple[Offer, int]], list[dict[str, Any]]]:
    """Return which offers give how many of the `wanted` instances, and the errors of those that can't give the rest."""
    shares: list[tuple[Offer, int]] = []
    errors: list[dict[str, Any]] = []
    for config in configs:
        for offer in _offers(backend, config, asked):
            left = wanted - sum(number for _, number in shares)
            try:
                _check(backend, offer)
            except ApiError as error:
                errors.append(offer.error(error))
                continue
            if left > 0:
                number, shortage = _room(backend, offer, left, shares)
                shares += [(offer, number)] if number else []
                errors += [offer.error(shortage)] if shortage else []
    return shares, errors


_shared: ContextVar[list[int]] = ContextVar("shared")
"""The number of instances of each launch specification in the fleet that is being created."""


def install() -> None:
    """Wrap the response of CreateFleet, and the launches that moto makes for it."""
    create = Fleets.create_fleet

    def get_launch_spec_counts(self: Any, _weight_to_add: float) -> Any:
        shared = _shared.get()
        return dict(zip(self.launch_specs, shared, strict=True)), float(sum(shared))

    def create_fleet(self: Any) -> Any:
        self.error_on_dryrun()  # Karpenter validates its EC2NodeClasses with dry runs; they need no capacity
        capacity = self._get_param("TargetCapacitySpecification")
        asked = capacity["DefaultTargetCapacityType"]
        into_block = asked == capacity_blocks.BLOCK
        configs, total = self._get_param("LaunchTemplateConfigs", []), int(capacity["TotalTargetCapacity"])
        shares, errors = _share(self.ec2_backend, configs, asked, total)
        if not shares:
            return ActionResult({"FleetId": random_fleet_id(), "Instances": [], "Errors": errors})
        self.params["LaunchTemplateConfigs"] = [
            {**offer.config, "Overrides": [offer.override]} for offer, _ in shares
        ]
        # Prepaid capacity is launched as on-demand capacity. `local.aws.launch` distinguishes them.
        self.params["TargetCapacitySpecification"] = {
            "DefaultTargetCapacityType": "on-demand" if into_block else asked,
            "TotalTargetCapacity": sum(number for _, number in shares),
        }
        _shared.set([number for _, number in shares])
        result = create(self)
        if into_block:
            for launched in result.result["Instances"]:
                launched["Lifecycle"] = capacity_blocks.BLOCK
        if errors:
            result.result["Errors"] = errors
        return result

    Fleet.get_launch_spec_counts = get_launch_spec_counts
    Fleets.create_fleet = create_fleet
