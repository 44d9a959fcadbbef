"""Leftovers in EC2: by the stack's exact tags, or by the exact tags that others put on them for its cluster.

Karpenter's machines, what EKS makes for a node group, interfaces of the VPC CNI, volumes of persistent volume claims
and groups of load balancers are in no state of Pulumi. Their tags: Karpenter `concepts/nodeclasses`, EKS user guide
(`eks:cluster-name`), VPC CNI `pkg/awsutils`, AWS EBS CSI driver `docs/tagging.md`, AWS Load Balancer Controller
`guide/service/annotations` (`elbv2.k8s.aws/cluster`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from components.documents.interfaces import CLUSTER_TAG as CNI
from trainyard.preflight.account import Account, by_tags, tags_of
from trainyard.preflight.leftovers.found import Found, Target

KARPENTER: Final = "eks:eks-cluster-name"
NODE_GROUP: Final = "eks:cluster-name"
OWNED: Final = "kubernetes.io/cluster/{cluster}"
LOAD_BALANCER: Final = "elbv2.k8s.aws/cluster"
EKS_GROUP: Final = "aws:eks:cluster-name"
GUARD_DUTY: Final = "GuardDutyManaged"
MACHINES_OF_CLUSTER: Final = (KARPENTER, NODE_GROUP)
INTERFACES_OF_CLUSTER: Final = (CNI, KARPENTER)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a kind is read: method, key of the answer, field of the id, field of the state and states that are gone.

    `of_cluster` are tags that name its cluster: a name with `{cluster}` has the value `owned`.
    """

    name: str
    method: str
    key: str
    identity: str
    state: str | None = None
    gone: frozenset[str] = frozenset()
    of_cluster: tuple[str, ...] = ()
    tags: str = "Tags"


def _gone(*states: str) -> frozenset[str]:
    return frozenset(states)


KINDS: Final = (
    Kind(
        name="network interface",
        method="describe_network_interfaces",
        key="NetworkInterfaces",
        identity="NetworkInterfaceId",
        tags="TagSet",
    ),
    Kind(
        name="launch template",
        method="describe_launch_templates",
        key="LaunchTemplates",
        identity="LaunchTemplateId",
        of_cluster=(KARPENTER, NODE_GROUP),
    ),
    Kind(
        name="volume",
        method="describe_volumes",
        key="Volumes",
        identity="VolumeId",
        state="State",
        gone=_gone("deleting", "deleted"),
        of_cluster=(KARPENTER, OWNED, "KubernetesCluster"),
    ),
    Kind(
        name="security group",
        method="describe_security_groups",
        key="SecurityGroups",
        identity="GroupId",
        of_cluster=(LOAD_BALANCER, OWNED, EKS_GROUP),
    ),
    Kind(
        name="NAT gateway",
        method="describe_nat_gateways",
        key="NatGateways",
        identity="NatGatewayId",
        state="State",
        gone=_gone("deleted", "deleting"),
    ),
    Kind(
        name="VPC endpoint",
        method="describe_vpc_endpoints",
        key="VpcEndpoints",
        identity="VpcEndpointId",
        state="State",
        gone=_gone("deleted", "deleting"),
    ),
    Kind(name="elastic IP", method="describe_addresses", key="Addresses", identity="AllocationId"),
    Kind(name="route table", method="describe_route_tables", key="RouteTables", identity="RouteTableId"),
    Kind(
        name="internet gateway",
        method="describe_internet_gateways",
        key="InternetGateways",
        identity="InternetGatewayId",
    ),
    Kind(name="subnet", method="describe_subnets", key="Subnets", identity="SubnetId"),
    Kind(name="VPC", method="describe_vpcs", key="Vpcs", identity="VpcId"),
    Kind(name="flow log", method="describe_flow_logs", key="FlowLogs", identity="FlowLogId"),
    Kind(
        name="capacity reservation",
        method="describe_capacity_reservations",
        key="CapacityReservations",
        identity="CapacityReservationId",
        state="State",
        gone=_gone("cancelled", "expired", "failed", "payment-failed"),
    ),
    Kind(
        name="placement group",
        method="describe_placement_groups",
        key="PlacementGroups",
        identity="GroupName",
        state="State",
        gone=_gone("deleted", "deleting"),
    ),
    Kind(
        name="spot request",
        method="describe_spot_instance_requests",
        key="SpotInstanceRequests",
        identity="SpotInstanceRequestId",
        state="State",
        gone=_gone("closed", "cancelled", "failed", "disabled", "completed"),
    ),
)


def instances(account: Account, target: Target) -> list[Found]:
    """Machines that are not ended: the stack's, Karpenter's and those of the cluster's node groups."""
    found = []
    for filters in _filters(target, MACHINES_OF_CLUSTER):
        for reservation in account.items("ec2", "describe_instances", "Reservations", Filters=filters):
            for instance in reservation["Instances"]:
                state = instance["State"]["Name"]
                if state not in ("terminated", "shutting-down"):
                    kind = instance.get("InstanceType", "")
                    found.append(
                        Found(
                            kind="EC2 instance",
                            identity=instance["InstanceId"],
                            note=f"{kind}, {state}" if kind else state,
                        )
                    )
    return found


def of_kind(account: Account, target: Target, kind: Kind) -> list[Found]:
    """All of one kind that are not gone."""
    found = []
    for filters in _filters(target, kind.of_cluster):
        for item in account.items("ec2", kind.method, kind.key, Filters=filters):
            state = str(item.get(kind.state, "")) if kind.state else ""
            if state.lower() not in kind.gone and kind.identity in item:
                note = tags_of(item, key=kind.tags).get("Name", "")
                found.append(Found(kind=kind.name, identity=item[kind.identity], note=note))
    return found


def _filters(target: Target, of_cluster: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    result = [by_tags(target.tags)]
    if target.cluster is not None:
        for name in of_cluster:
            value = "owned" if "{cluster}" in name else target.cluster
            result.append(by_tags({name.format(cluster=target.cluster): value}))
    return result


def cluster_interfaces(account: Account, target: Target) -> list[Found]:
    """Interfaces of the cluster that nothing uses: the VPC CNI's, Karpenter's, and those of the control plane itself.

    EKS describes the latter as `Amazon EKS <cluster>` and gives them no tag of ours.
    """
    if target.cluster is None:
        return []
    unused = {"Name": "status", "Values": ["available"]}
    searches = [
        *([unused, *by_tags({name: target.cluster})] for name in INTERFACES_OF_CLUSTER),
        [unused, {"Name": "description", "Values": [f"Amazon EKS {target.cluster}"]}],
    ]
    return [
        Found(
            kind="network interface",
            identity=item["NetworkInterfaceId"],
            note=item.get("Description") or "",
        )
        for filters in searches
        for item in account.items("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    ]


def guard_duty(account: Account, target: Target) -> list[Found]:
    """What GuardDuty put into a VPC of the stack that still exists: it blocks the VPC's deletion.

    Its endpoint and group carry the tag GuardDutyManaged and nothing of the stack
    (https://docs.aws.amazon.com/guardduty/latest/ug/runtime-monitoring-agent-resource-clean-up.html).
    """
    vpcs = account.items("ec2", "describe_vpcs", "Vpcs", Filters=by_tags(target.tags))
    if not vpcs:
        return []
    here = {"Name": "vpc-id", "Values": [vpc["VpcId"] for vpc in vpcs]}
    service = f"com.amazonaws.{target.region}.guardduty-data"
    endpoints = account.items(
        "ec2",
        "describe_vpc_endpoints",
        "VpcEndpoints",
        Filters=[here, {"Name": "service-name", "Values": [service]}],
    )
    groups = account.items(
        "ec2",
        "describe_security_groups",
        "SecurityGroups",
        Filters=[here, *by_tags({GUARD_DUTY: "true"})],
    )
    return [
        Found(kind="GuardDuty endpoint", identity=e["VpcEndpointId"], note=f"in {e['VpcId']}")
        for e in endpoints
        if e["State"].lower() not in ("deleted", "deleting")
    ] + [
        Found(kind="GuardDuty security group", identity=g["GroupId"], note=f"in {g['VpcId']}") for g in groups
    ]


def groups_of_nodes(account: Account, target: Target) -> list[Found]:
    """Auto Scaling groups that EKS made for the cluster's node groups, or that carry the stack's tags."""
    wanted = [target.tags, *([{NODE_GROUP: target.cluster}] if target.cluster else [])]
    found = []
    for tags in wanted:
        for group in account.items(
            "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", Filters=by_tags(tags)
        ):
            if group.get("Status") != "Delete in progress":
                found.append(Found(kind="Auto Scaling group", identity=group["AutoScalingGroupName"]))
    return found
