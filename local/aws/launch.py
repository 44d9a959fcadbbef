"""Properties that an instance gets from its launch template and its fleet, which moto leaves out.

Without the template's security groups, Karpenter treats every node as drifted and replaces it within seconds.
"""

from __future__ import annotations

import copy
from typing import Any

from moto.ec2.models.fleets import Fleet
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.models.launch_templates import LaunchTemplateVersion

from local.aws import events, identity, placement_groups, volume_keys

CAPACITY_BLOCK = "capacity-block"


def template_groups(data: dict[str, Any]) -> list[str]:
    """Return the security groups of a launch template: its own, or those of its first network interface."""
    cards = data.get("NetworkInterfaces") or [{}]
    return list(data.get("SecurityGroupIds") or cards[0].get("Groups") or [])


def complete(instance: Any, data: dict[str, Any], template: Any = None) -> None:
    """Set on an instance what its launch template contains and DescribeInstances shows."""
    profile = data.get("IamInstanceProfile") or {}
    if profile:
        # AWS refuses the launch if the profile does not exist. moto raises an error, and the fleet reports it.
        instance.ec2_backend.associate_iam_instance_profile(
            instance_id=instance.id,
            iam_instance_profile_name=profile.get("Name"),
            iam_instance_profile_arn=profile.get("Arn"),
        )
    reservation = data.get("CapacityReservationSpecification")
    if reservation:
        # Set both or neither: with the id alone, several of Karpenter's controllers panic repeatedly.
        instance.capacity_reservation_specification = reservation
        target = reservation.get("CapacityReservationTarget") or {}
        if target.get("CapacityReservationId"):
            instance.capacity_reservation_id = target["CapacityReservationId"]
    if (data.get("InstanceMarketOptions") or {}).get("MarketType") == CAPACITY_BLOCK:
        instance.lifecycle = CAPACITY_BLOCK
    tenancy = (data.get("Placement") or {}).get("Tenancy")
    if tenancy:
        instance.placement.tenancy = tenancy
    group = placement_groups.of_launch(instance.ec2_backend, data)
    if group is not None:
        instance.placement.group_name, instance.placement.group_id = group["GroupName"], group["GroupId"]
    instance.efa_interfaces = sum(
        1
        for card in data.get("NetworkInterfaces") or []
        if str(card.get("InterfaceType", "")).startswith("efa")
    )
    if template is not None:
        instance.add_tags(
            {
                "aws:ec2launchtemplate:id": template.template.id,
                "aws:ec2launchtemplate:version": str(template.number),
            }
        )


def install() -> None:
    """Patch launch templates, fleets and instances."""
    make_version = LaunchTemplateVersion.__init__

    def version_with_groups(
        self: Any, template: Any, number: int, data: dict[str, Any], description: str
    ) -> None:
        # moto's fleet reads `GroupSet` only.
        groups = template_groups(data)
        if groups:
            data.setdefault("GroupSet", groups)
        make_version(self, template, number, data, description)

    LaunchTemplateVersion.__init__ = version_with_groups

    make_instance = Instance.__init__

    def instance_in_region(self: Any, ec2_backend: Any, *args: Any, **kwargs: Any) -> None:
        # A fleet passes no region. moto then names instances ip-...ec2.internal, as in us-east-1.
        kwargs["region_name"] = ec2_backend.region_name
        make_instance(self, ec2_backend, *args, **kwargs)
        # DeleteOnTermination is true for interfaces of a launch (EC2 User Guide). moto never deletes them.
        for interface in self.nics.values():
            interface.delete_on_termination = True

    Instance.__init__ = instance_in_region

    on_demand, spot = Fleet.create_on_demand_requests, Fleet.create_spot_requests

    def finish(fleet: Any, instance: Any, launch_spec: Any) -> None:
        specification = launch_spec.launch_template_spec
        template = fleet.ec2_backend.get_launch_template(specification["LaunchTemplateId"])
        version = template.get_version(specification.get("Version", "$Default"))
        complete(instance, version.data, version)
        launcher = volume_keys.SPOT if instance.lifecycle == "spot" else _caller()
        reason = volume_keys.refusal(fleet.ec2_backend, version.data, launcher)
        if reason is not None:
            volume_keys.end_at_launch(instance, reason)
        instance.add_tags({"aws:ec2:fleet-id": fleet.id})

    # A fleet has one capacity type, so moto calls one of these once.
    def create_on_demand_requests(self: Any, weight_to_add: float) -> None:
        on_demand(self, weight_to_add)
        for item in self.on_demand_instances:
            finish(self, item["instance"], item["launch_spec"])

    def create_spot_requests(self: Any, weight_to_add: float) -> Any:
        requests = spot(self, weight_to_add)
        for request in requests:
            request.instance.lifecycle = "spot"
            request.instance.spot_instance_request_id = request.id
            finish(self, request.instance, request.launch_spec)
        return requests

    Fleet.create_on_demand_requests = create_on_demand_requests
    Fleet.create_spot_requests = create_spot_requests

    run_instances = InstanceBackend.run_instances

    def run_and_notify(self: Any, *args: Any, **kwargs: Any) -> Any:
        reservation = run_instances(self, *args, **kwargs)
        for instance in reservation.instances:
            events.instance_state_changed(instance, instance.state)
        events.notify_change()
        return reservation

    InstanceBackend.run_instances = run_and_notify

    terminate = Instance.terminate

    def terminate_and_notify(self: Any) -> Any:
        if self.state == "terminated":  # moto would delete the interfaces again and fail
            return copy.copy(self._state)
        previous_state = terminate(self)
        volume_keys.explain_end(self)
        _close_spot_request(self)
        events.instance_state_changed(self, "terminated")
        events.notify_change()
        return previous_state

    Instance.terminate = terminate_and_notify


def _caller() -> str | None:
    """Return the role whose session makes this call; None for a user."""
    who = identity.calling.get()
    return None if who is None or who.role is None else who.principal_arn


def _close_spot_request(instance: Any) -> None:
    """Close the one-time Spot request of a terminated instance, which moto leaves `active`.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html
    """
    for request in instance.ec2_backend.spot_instance_requests.values():
        if request.instance is not None and request.instance.id == instance.id and request.state == "active":
            request.state, request._status_code = "closed", "instance-terminated-by-user"
            request.status_message = "Your Spot Instance was terminated by user-initiated termination."
