"""Find and remove what a destroyed stack left in the account, by the tags of its cluster.

The state of Pulumi does not have Karpenter's instances, launch templates and instance profiles, interfaces of the VPC
CNI, volumes of claims, and load balancers of controllers. A search by name prefix would find other stacks. In an
existing cluster, nodes of its owner have the cluster's tags too, so there only resources with the stack's tags as
well are removed. `trainyard.preflight.leftovers` lists the same and more, and deletes nothing; a test compares the
two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import boto3

GONE = ("terminated", "shutting-down", "deleting", "deleted")
# Tags whose value is the cluster's name, by kind: Karpenter's, EKS's for node groups, the network plugin's, those of
# the EBS CSI driver and of the controller for load balancers. `kubernetes.io/cluster/<name>` has the value `owned`.
KARPENTER = "eks:eks-cluster-name"
OWNED = "kubernetes.io/cluster/{cluster}"
LOAD_BALANCER = "elbv2.k8s.aws/cluster"
TAGS: dict[str, tuple[str, ...]] = {
    "EC2 instance": (KARPENTER, "eks:cluster-name"),
    "load balancer": (LOAD_BALANCER, OWNED),
    "network interface": ("cluster.k8s.amazonaws.com/name", KARPENTER),
    "security group": (LOAD_BALANCER,),
    "launch template": (KARPENTER, "eks:cluster-name"),
    "volume": (KARPENTER, OWNED, "KubernetesCluster"),
    "instance profile": (KARPENTER,),
}


def stack_tags(stack: str) -> dict[str, str]:
    """Return the tags of all resources of a stack, as in `components.documents.tags`; a test compares the two."""
    return {"trainyard:project": "trainyard", "trainyard:stack": stack}


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One resource that still exists."""

    kind: str
    identity: str
    remove: Callable[[], Any]


def _filters(kind: str, cluster: str, stack: Mapping[str, str]) -> Iterator[list[dict[str, Any]]]:
    more = [{"Name": f"tag:{name}", "Values": [value]} for name, value in stack.items()]
    if kind == "network interface":
        more.append({"Name": "status", "Values": ["available"]})
    for name in TAGS[kind]:
        value = "owned" if name == OWNED else cluster
        yield [{"Name": f"tag:{name.format(cluster=cluster)}", "Values": [value]}, *more]


def leftovers(region: str, cluster: str, stack: Mapping[str, str] | None = None) -> Iterator[Leftover]:
    """Return the resources that still have the cluster's tags, in an order in which they can be removed.

    Args:
        stack: Tags that they must also have, in an existing cluster. None: all of the cluster is removed.
    """
    more = stack or {}
    ec2 = boto3.client("ec2", region_name=region)
    for filters in _filters("EC2 instance", cluster, more):
        for reservation in ec2.describe_instances(Filters=filters)["Reservations"]:
            for instance in reservation["Instances"]:
                if instance["State"]["Name"] not in GONE:
                    name = instance["InstanceId"]
                    remove = partial(ec2.terminate_instances, InstanceIds=[name])
                    yield Leftover(kind="EC2 instance", identity=name, remove=remove)
    yield from _load_balancers(region, cluster, more)
    for kind, key, field in (
        ("network interface", "NetworkInterfaces", "NetworkInterfaceId"),
        ("security group", "SecurityGroups", "GroupId"),
        ("launch template", "LaunchTemplates", "LaunchTemplateId"),
        ("volume", "Volumes", "VolumeId"),
    ):
        operation = kind.replace(" ", "_")
        delete = getattr(ec2, f"delete_{operation}")
        for filters in _filters(kind, cluster, more):
            for item in getattr(ec2, f"describe_{operation}s")(Filters=filters)[key]:
                if item.get("State") not in GONE:
                    remove = partial(delete, **{field: item[field]})
                    yield Leftover(kind=kind, identity=item[field], remove=remove)
    yield from _profiles(boto3.client("iam", region_name=region), cluster, more)
    if stack is None:
        yield from _log_group(boto3.client("logs", region_name=region), cluster)


def _load_balancers(region: str, cluster: str, stack: Mapping[str, str]) -> Iterator[Leftover]:
    """Return load balancers first: a target group in use can't be deleted."""
    tagging = boto3.client("resourcegroupstaggingapi", region_name=region)
    client = boto3.client("elbv2", region_name=region)
    found: list[Leftover] = []
    for name in TAGS["load balancer"]:
        value = "owned" if name == OWNED else cluster
        answer = tagging.get_resources(
            TagFilters=[
                {"Key": name.format(cluster=cluster), "Values": [value]},
                *({"Key": key, "Values": [text]} for key, text in stack.items()),
            ],
            ResourceTypeFilters=["elasticloadbalancing"],
        )
        for arn in (entry["ResourceARN"] for entry in answer["ResourceTagMappingList"]):
            path = arn.split(":", 5)[5]
            if path.startswith("targetgroup/"):
                remove = partial(client.delete_target_group, TargetGroupArn=arn)
                found.append(Leftover(kind="target group", identity=path.partition("/")[2], remove=remove))
            elif path.startswith(("loadbalancer/app/", "loadbalancer/net/")):
                remove = partial(client.delete_load_balancer, LoadBalancerArn=arn)
                found.append(Leftover(kind="load balancer", identity=path.partition("/")[2], remove=remove))
    yield from sorted(found, key=lambda each: each.kind)


def _profiles(iam: Any, cluster: str, stack: Mapping[str, str]) -> Iterator[Leftover]:
    (tag,) = TAGS["instance profile"]
    wanted = {tag: cluster, **stack}.items()
    for profile in iam.list_instance_profiles()["InstanceProfiles"]:
        name = profile["InstanceProfileName"]
        tags = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"].get("Tags", [])
        if all({"Key": key, "Value": value} in tags for key, value in wanted):
            roles = [role["RoleName"] for role in profile["Roles"]]
            remove = partial(_remove_profile, iam, name, roles)
            yield Leftover(kind="instance profile", identity=name, remove=remove)


def _remove_profile(iam: Any, name: str, roles: list[str]) -> None:
    for role in roles:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
    iam.delete_instance_profile(InstanceProfileName=name)


def _log_group(logs: Any, cluster: str) -> Iterator[Leftover]:
    """Return the log group of the control plane. Late entries create it again after its deletion."""
    name = f"/aws/eks/{cluster}/cluster"
    for group in logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]:
        if group["logGroupName"] == name:
            remove = partial(logs.delete_log_group, logGroupName=name)
            yield Leftover(kind="log group", identity=name, remove=remove)


def sweep(
    region: str, cluster: str, report: Callable[[str], None], stack: Mapping[str, str] | None = None
) -> int:
    """Remove each leftover and print its name. Return their number. `stack` is as in `leftovers`."""
    found = {(each.kind, each.identity): each for each in leftovers(region, cluster, stack)}
    for leftover in found.values():
        report(f"sweep: {leftover.kind} {leftover.identity} was left by cluster {cluster}; removing it")
        leftover.remove()
    return len(found)
