"""What nodes and the cluster leave in the AWS account, found by this cluster's tags, never by the prefix of a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from botocore.exceptions import ClientError

from trainyard.k8s.names import LABEL_NODEPOOL

from ..documents.iam import control_plane_group
from ..documents.interfaces import CLUSTER_TAG as INTERFACE_CLUSTER_TAG
from ..documents.interfaces import INSTANCE_TAG

# Karpenter's tag (its documentation, "Cluster tags"), and EKS's tag on the group that it creates for a cluster
# (EKS user guide, "Security group requirements").
KARPENTER_CLUSTER_TAG: Final = "eks:eks-cluster-name"
EKS_CLUSTER_TAG: Final = "aws:eks:cluster-name"
# Karpenter's on an instance profile: the EC2NodeClass, which has its pool's name (pkg/apis/v1/labels.go).
NODE_CLASS_TAG: Final = "karpenter.k8s.aws/ec2nodeclass"
# GuardDuty creates an endpoint and a group in every VPC that it monitors and keeps both after the nodes are deleted
# (GuardDuty user guide, "Runtime Monitoring", shared VPC and automated agent).
GUARDDUTY_TAG: Final = "GuardDutyManaged"
# Values of one filter (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html).
MOST_VALUES: Final = 200
ALIVE: Final = ["pending", "running", "shutting-down", "stopping", "stopped"]
# Error codes of deleted resources and of resources in use. The next round retries the latter.
PASSING: Final = (
    "InvalidNetworkInterfaceID.NotFound",
    "InvalidNetworkInterface.InUse",
    "InvalidParameterValue",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidGroup.NotFound",
    "DependencyViolation",
    "InvalidVpcEndpointId.NotFound",
    "NoSuchEntity",
    "ResourceNotFoundException",
    "OperationAbortedException",
)


class Account:
    """An `AccountApi` and a `RemainsApi`.

    `pools` names the stack's pools in an existing cluster, where other instances have the cluster's tags, too. It is
    None if the stack created the cluster.
    """

    def __init__(self, session: Any, cluster: str, pools: frozenset[str] | None = None) -> None:
        self._cluster = cluster
        self._pools = pools
        self._ec2 = session.client("ec2")
        self._iam = session.client("iam")
        self._logs = session.client("logs")

    def instances(self) -> list[str]:
        return self._instances({"Name": "instance-state-name", "Values": ALIVE})

    def _instances(self, *more: dict[str, Any]) -> list[str]:
        """Return Karpenter's instances, with those that were terminated in the last hour, which EC2 still lists."""
        filters = [*self._karpenters(), {"Name": "tag-key", "Values": [LABEL_NODEPOOL]}, *more]
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return [
            instance["InstanceId"]
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]

    def terminate(self, instances: list[str]) -> None:
        self._ec2.terminate_instances(InstanceIds=instances)

    def remove_leftovers_of_instances(self) -> list[str]:
        return [*self.remove_interfaces(), *self._remove_templates(), *self._remove_profiles()]

    def remove_interfaces(self) -> list[str]:
        """Remove free interfaces of nodes, which would block the deletion of subnets and groups."""
        found: set[str] = set()
        for filters in (self._karpenters(), *self._network_plugins()):
            free = [*filters, {"Name": "status", "Values": ["available"]}]
            found |= set(self._ids("describe_network_interfaces", "NetworkInterfaces", free))
        return [
            f"network interface {each}"
            for each in sorted(found)
            if _passes(self._ec2.delete_network_interface, NetworkInterfaceId=each)
        ]

    def remove_cluster_group(self) -> list[str]:
        """Remove EKS's security group, which remains if an interface uses it when the cluster is deleted."""
        found = self._ids("describe_security_groups", "SecurityGroups", self._tagged(EKS_CLUSTER_TAG))
        return [
            f"security group {each}"
            for each in sorted(found)
            if _passes(self._ec2.delete_security_group, GroupId=each)
        ]

    def remove_guardduty(self, vpc: str) -> list[str]:
        """Remove GuardDuty's endpoint and group in one VPC."""
        filters = [
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": f"tag:{GUARDDUTY_TAG}", "Values": ["true"]},
        ]
        endpoints = self._ids("describe_vpc_endpoints", "VpcEndpoints", filters)
        if endpoints:
            self._ec2.delete_vpc_endpoints(VpcEndpointIds=endpoints)
        groups = self._ids("describe_security_groups", "SecurityGroups", filters)
        gone = [each for each in groups if _passes(self._ec2.delete_security_group, GroupId=each)]
        return [
            *(f"GuardDuty's endpoint {each}" for each in endpoints),
            *(f"GuardDuty's security group {each}" for each in gone),
        ]

    def remove_late_logs(self) -> list[str]:
        """Delete the control plane's log group if EKS created it again.

        EKS sets no tags. A group with a tag is the stack's, or was created by a user.
        """
        name = control_plane_group(self._cluster)
        # Sorted by name, so that the group of exactly this name is on the first page
        # (https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_DescribeLogGroups.html).
        for group in self._logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]:
            if group["logGroupName"] != name:
                continue
            arn = group["arn"].removesuffix(":*")
            if self._logs.list_tags_for_resource(resourceArn=arn)["tags"]:
                continue
            if _passes(self._logs.delete_log_group, logGroupName=name):
                return [f"log group {name}"]
        return []

    def remaining(self, vpc: str | None) -> list[str]:
        """Return what is left: interfaces of the cluster in any state, its group, GuardDuty's endpoint and group."""
        found = [
            f"network interface {each}"
            for each in self._ids(
                "describe_network_interfaces", "NetworkInterfaces", self._tagged(INTERFACE_CLUSTER_TAG)
            )
        ]
        groups = self._ids("describe_security_groups", "SecurityGroups", self._tagged(EKS_CLUSTER_TAG))
        found += [f"security group {each}" for each in groups]
        if vpc:
            filters = [
                {"Name": "vpc-id", "Values": [vpc]},
                {"Name": f"tag:{GUARDDUTY_TAG}", "Values": ["true"]},
            ]
            for method, key in (
                ("describe_vpc_endpoints", "VpcEndpoints"),
                ("describe_security_groups", "SecurityGroups"),
            ):
                found += [f"GuardDuty's {each}" for each in self._ids(method, key, filters)]
        return found

    def _remove_templates(self) -> list[str]:
        found = self._ids("describe_launch_templates", "LaunchTemplates", self._karpenters())
        return [
            f"launch template {each}"
            for each in sorted(found)
            if _passes(self._ec2.delete_launch_template, LaunchTemplateId=each)
        ]

    def _remove_profiles(self) -> list[str]:
        return [
            f"instance profile {name}"
            for name, roles in self._profiles()
            if self._remove_profile(name, roles)
        ]

    def _profiles(self) -> Iterator[tuple[str, list[str]]]:
        """Return instance profiles of this cluster and their roles.

        Lists contain no tags, so it reads the tags of each profile.
        """
        for page in self._iam.get_paginator("list_instance_profiles").paginate():
            for profile in page["InstanceProfiles"]:
                name = profile["InstanceProfileName"]
                try:
                    found = self._iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
                except self._iam.exceptions.NoSuchEntityException:
                    continue
                tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])}
                ours = self._pools is None or tags.get(NODE_CLASS_TAG) in self._pools
                if ours and tags.get(KARPENTER_CLUSTER_TAG) == self._cluster:
                    yield name, [role["RoleName"] for role in profile["Roles"]]

    def _remove_profile(self, name: str, roles: list[str]) -> bool:
        for role in roles:
            _passes(self._iam.remove_role_from_instance_profile, InstanceProfileName=name, RoleName=role)
        return _passes(self._iam.delete_instance_profile, InstanceProfileName=name)

    def _karpenters(self) -> list[dict[str, Any]]:
        """Return filters of Karpenter's resources for the cluster or, in an existing one, the stack's pools."""
        of_cluster = self._tagged(KARPENTER_CLUSTER_TAG)
        if self._pools is None:
            return of_cluster
        return [*of_cluster, {"Name": f"tag:{LABEL_NODEPOOL}", "Values": sorted(self._pools)}]

    def _network_plugins(self) -> Iterator[list[dict[str, Any]]]:
        """Return filters of the VPC CNI's interfaces. Their tags name the instance, and no pool.

        An interface of another node may be about to be attached: it is available for some seconds before.
        """
        of_cluster = self._tagged(INTERFACE_CLUSTER_TAG)
        if self._pools is None:
            yield of_cluster
            return
        machines = self._instances()
        for first in range(0, len(machines), MOST_VALUES):
            ids = machines[first : first + MOST_VALUES]
            yield [*of_cluster, {"Name": f"tag:{INSTANCE_TAG}", "Values": ids}]

    def _tagged(self, tag: str) -> list[dict[str, Any]]:
        return [{"Name": f"tag:{tag}", "Values": [self._cluster]}]

    def _ids(self, method: str, key: str, filters: list[dict[str, Any]]) -> list[str]:
        identity = {
            "NetworkInterfaces": "NetworkInterfaceId",
            "SecurityGroups": "GroupId",
            "VpcEndpoints": "VpcEndpointId",
            "LaunchTemplates": "LaunchTemplateId",
        }[key]
        pages = self._ec2.get_paginator(method).paginate(Filters=filters)
        gone = ("deleting", "deleted")
        return [
            each[identity]
            for page in pages
            for each in page[key]
            if str(each.get("State", "")).lower() not in gone
        ]


def _passes(call: Any, **arguments: str) -> bool:
    """Return whether a deletion was accepted; False if the resource is deleted already or still in use."""
    try:
        call(**arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] in PASSING:
            return False
        raise
    return True
