"""Find leftovers in EC2 by the exact tags of the stack or of its cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from infra.settings import Settings
from trainyard.preflight.aws import Aws, by_tags, filter_by, instances, tags_of
from trainyard.preflight.findings import own_tags
from trainyard.preflight.leftovers.leftover import CLUSTER_TAGS, Leftover, own_cluster, tag_sets


@dataclass(frozen=True)
class Kind:
    """How to read a kind: method, key of the answer, key of the id, and the states of deleted resources."""

    name: str
    method: str
    key: str
    identity: str
    gone: str = ""


KINDS: Final = (
    Kind("network interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    Kind("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    Kind("volume", "describe_volumes", "Volumes", "VolumeId", "deleting deleted"),
    Kind("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
    Kind("NAT gateway", "describe_nat_gateways", "NatGateways", "NatGatewayId", "deleting deleted"),
    Kind("VPC endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "deleting deleted"),
    Kind("elastic IP", "describe_addresses", "Addresses", "AllocationId"),
    Kind("route table", "describe_route_tables", "RouteTables", "RouteTableId"),
    Kind("internet gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    Kind("subnet", "describe_subnets", "Subnets", "SubnetId"),
    Kind("VPC", "describe_vpcs", "Vpcs", "VpcId"),
    Kind("flow log", "describe_flow_logs", "FlowLogs", "FlowLogId"),
    Kind(
        "capacity reservation",
        "describe_capacity_reservations",
        "CapacityReservations",
        "CapacityReservationId",
        "cancelled expired failed payment-failed",
    ),
    Kind("placement group", "describe_placement_groups", "PlacementGroups", "GroupName", "deleting deleted"),
    Kind(
        "spot request",
        "describe_spot_instance_requests",
        "SpotInstanceRequests",
        "SpotInstanceRequestId",
        "closed cancelled failed disabled completed",
    ),
)


def find_instances(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find instances of the stack, of Karpenter and of the cluster's node groups."""
    found = []
    for tags in tag_sets(settings, "EC2 instance"):
        for each in instances(aws, *by_tags(tags)):
            state = each["State"]["Name"]
            if state not in ("terminated", "shutting-down"):
                note = ", ".join(filter(None, (each.get("InstanceType"), state)))
                found.append(Leftover(kind="EC2 instance", identity=each["InstanceId"], note=note))
    return found


def find(settings: Settings, aws: Aws, kind: Kind) -> list[Leftover]:
    """Find the resources of one kind."""
    found = []
    # An attached interface of the cluster belongs to its instance (`find_cluster_interfaces`).
    sets = [own_tags(settings)] if kind.name == "network interface" else tag_sets(settings, kind.name)
    for tags in sets:
        for item in aws.items("ec2", kind.method, kind.key, Filters=by_tags(tags)):
            state = str(item.get("State", "")).lower()
            if state not in kind.gone.split() and kind.identity in item:
                name = (tags_of(item) or tags_of(item, key="TagSet")).get("Name", "")
                found.append(Leftover(kind=kind.name, identity=item[kind.identity], note=name))
    return found


def find_cluster_interfaces(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find unused interfaces of the VPC CNI, of Karpenter and of the control plane, which have no tag of the stack.

    EKS describes the control plane's as `Amazon EKS <cluster>`.
    """
    cluster = own_cluster(settings)
    if cluster is None:
        return []
    searches: list[list[dict[str, Any]]] = [
        *(by_tags({name: cluster}) for name in CLUSTER_TAGS["network interface"]),
        [filter_by("description", f"Amazon EKS {cluster}")],
    ]
    return [
        Leftover(
            kind="network interface", identity=each["NetworkInterfaceId"], note=each.get("Description") or ""
        )
        for filters in searches
        for each in aws.items(
            "ec2",
            "describe_network_interfaces",
            "NetworkInterfaces",
            Filters=[filter_by("status", "available"), *filters],
        )
    ]


def find_guard_duty(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find GuardDuty's endpoint and security group in a VPC of the stack. They prevent the VPC's deletion.

    Their only tag is GuardDutyManaged
    (https://docs.aws.amazon.com/guardduty/latest/ug/runtime-monitoring-agent-resource-clean-up.html).
    """
    vpcs = aws.items("ec2", "describe_vpcs", "Vpcs", Filters=by_tags(own_tags(settings)))
    if not vpcs:
        return []
    here = filter_by("vpc-id", *(vpc["VpcId"] for vpc in vpcs))
    service = filter_by("service-name", f"com.amazonaws.{settings.region}.guardduty-data")
    endpoints = aws.items("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=[here, service])
    tag = by_tags({"GuardDutyManaged": "true"})
    groups = aws.items("ec2", "describe_security_groups", "SecurityGroups", Filters=[here, *tag])
    return [
        Leftover(kind="GuardDuty endpoint", identity=each["VpcEndpointId"], note=f"in {each['VpcId']}")
        for each in endpoints
        if each["State"].lower() not in ("deleted", "deleting")
    ] + [
        Leftover(kind="GuardDuty security group", identity=each["GroupId"], note=f"in {each['VpcId']}")
        for each in groups
    ]
