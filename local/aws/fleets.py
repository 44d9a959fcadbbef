"""CreateFleet with a market: the cheapest offer first, and failures as the plan of `local.aws.faults` says.

moto always has capacity. As on AWS, an override that cannot be launched is told in `Errors`; the call itself succeeds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses.fleets import Fleets
from moto.ec2.utils import random_fleet_id

from local.aws import faults, placement_groups, prices, reservations
from local.aws.capacity_blocks import BLOCK

CAPACITY_DEFAULT = "on-demand"


def capacity_type(instance: Any) -> str:
    """Karpenter's word for how an instance is paid: on-demand, spot or reserved."""
    if getattr(instance, "capacity_reservation_id", None):
        return "reserved"
    return "spot" if instance.lifecycle == "spot" else "on-demand"


def running(backend: Any) -> Iterator[Any]:
    """Instances that take capacity."""
    return (i for i in backend.all_instances() if i.state in ("pending", "running", "stopping"))


def count_running(backend: Any, fault: faults.Fault) -> int:
    """How many running instances a rule is about."""
    return sum(
        fault.matches(i.instance_type, i.placement.zone or "", capacity_type(i)) for i in running(backend)
    )


def _template_data(backend: Any, specification: dict[str, Any]) -> dict[str, Any]:
    if specification.get("LaunchTemplateId"):
        template = backend.get_launch_template(specification["LaunchTemplateId"])
    else:
        template = backend.get_launch_template_by_name(specification["LaunchTemplateName"])
    data: dict[str, Any] = template.get_version(specification.get("Version", "$Default")).data
    return data


def _judge(
    backend: Any, config: dict[str, Any], override: dict[str, Any], asked: str
) -> dict[str, Any] | None:
    """The error that keeps an override from being launched, or None."""
    specification = config["LaunchTemplateSpecification"]
    data = _template_data(backend, specification)
    instance_type = override.get("InstanceType") or data.get("InstanceType", "")
    zone = override.get("AvailabilityZone") or ""
    if override.get("SubnetId"):
        zone = backend.get_subnet(override["SubnetId"]).availability_zone
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    reservation_id = target.get("CapacityReservationId")
    error = (
        reservations.launch_error(backend, reservation_id, instance_type, zone) if reservation_id else None
    )
    kind = "reserved" if reservation_id else asked
    if error is None:
        held = reservations.reservations(backend).get(reservation_id) if reservation_id else None
        error = placement_groups.launch_error(backend, data, held)
    if error is None:
        fault = faults.plan().launch_fault(instance_type, zone, kind, lambda f: count_running(backend, f))
        if fault is None:
            return None
        error = (fault.code, fault.text(instance_type, zone))
    return {
        "LaunchTemplateAndOverrides": {"LaunchTemplateSpecification": specification, "Overrides": override},
        "Lifecycle": "spot" if asked == "spot" else "on-demand",
        "ErrorCode": error[0],
        "ErrorMessage": error[1],
    }


def install() -> None:
    """Wrap the response of CreateFleet."""
    create = Fleets.create_fleet

    def create_fleet(self: Any) -> Any:
        self.error_on_dryrun()  # Karpenter validates its EC2NodeClasses with dry runs; they meet no capacity
        target = self._get_param("TargetCapacitySpecification") or {}
        asked = target.get("DefaultTargetCapacityType")
        backend = self.ec2_backend
        errors, configs = [], []
        for config in self._get_param("LaunchTemplateConfigs", []):
            good = []
            for override in config.get("Overrides") or [{}]:
                error = _judge(backend, config, override, asked or CAPACITY_DEFAULT)
                if error is None:
                    good.append(override)
                else:
                    errors.append(error)
            if good:
                # moto takes the first; the strategy `lowest-price` takes the cheapest.
                good.sort(key=lambda o: prices.hourly(o.get("InstanceType", "")))
                kept = copy.copy(config)
                kept["Overrides"] = [o for o in good if o]
                configs.append(kept)
        if not configs:
            return ActionResult({"FleetId": random_fleet_id(), "Instances": [], "Errors": errors})
        self.params["LaunchTemplateConfigs"] = configs
        if asked == BLOCK:
            # moto launches nothing for a type that it doesn't know; what makes it a block's is in the template.
            self.params["TargetCapacitySpecification"] = {
                **target,
                "DefaultTargetCapacityType": CAPACITY_DEFAULT,
            }
        result = create(self)
        if errors:
            result.result["Errors"] = errors
        return result

    Fleets.create_fleet = create_fleet
