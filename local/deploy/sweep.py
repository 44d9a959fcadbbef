"""Find and remove what a destroyed stack left in the account: only what carries exactly this stack's tags.

Karpenter's instances, launch templates and instance profiles are not in the state of Pulumi; they carry the tag
`eks:eks-cluster-name` (Karpenter documentation, "Cluster tags"). A sweep by name prefix would reach other stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import boto3

CLUSTER_TAG = "eks:eks-cluster-name"
GONE = ("terminated", "shutting-down")


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One thing that still exists."""

    kind: str
    identity: str
    remove: Callable[[], Any]


def _tag_filter(cluster: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]


def leftovers(region: str, cluster: str) -> Iterator[Leftover]:
    """What still carries the cluster's tag, in an order in which it can be removed."""
    ec2 = boto3.client("ec2", region_name=region)
    filters = _tag_filter(cluster)
    for reservation in ec2.describe_instances(Filters=filters)["Reservations"]:
        for instance in reservation["Instances"]:
            if instance["State"]["Name"] not in GONE:
                name = instance["InstanceId"]
                yield Leftover(
                    kind="EC2 instance",
                    identity=name,
                    remove=partial(ec2.terminate_instances, InstanceIds=[name]),
                )
    for interface in ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]:
        if interface["Status"] == "available":
            name = interface["NetworkInterfaceId"]
            yield Leftover(
                kind="network interface",
                identity=name,
                remove=partial(ec2.delete_network_interface, NetworkInterfaceId=name),
            )
    for template in ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]:
        name = template["LaunchTemplateId"]
        yield Leftover(
            kind="launch template",
            identity=name,
            remove=partial(ec2.delete_launch_template, LaunchTemplateId=name),
        )
    iam = boto3.client("iam", region_name=region)
    for profile in iam.list_instance_profiles()["InstanceProfiles"]:
        name = profile["InstanceProfileName"]
        tags = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"].get("Tags", [])
        if {"Key": CLUSTER_TAG, "Value": cluster} in tags:
            roles = [role["RoleName"] for role in profile["Roles"]]
            yield Leftover(
                kind="instance profile",
                identity=name,
                remove=partial(_remove_profile, iam, name, roles),
            )


def _remove_profile(iam: Any, name: str, roles: list[str]) -> None:
    for role in roles:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
    iam.delete_instance_profile(InstanceProfileName=name)


def sweep(region: str, cluster: str, say: Callable[[str], None]) -> int:
    """Remove every leftover, name each; returns how many there were."""
    count = 0
    for leftover in list(leftovers(region, cluster)):
        say(f"sweep: {leftover.kind} {leftover.identity} was left by cluster {cluster}; removing it")
        leftover.remove()
        count += 1
    return count
