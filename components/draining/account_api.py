"""What nodes and the cluster leave in the AWS account, found by this cluster's tags, never by the prefix of a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from botocore.exceptions import ClientError

from trainyard.k8s.names import LABEL_NODEPOOL

from ..documents.iam import control_plane_group
from ..documents.tags import CNI_CLUSTER, CNI_INSTANCE

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
MAXIMUM_VALUES: Final = 200
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


# Resource -> EC2's operation that lists it, and the key of its id.
_RESOURCES: Final = {
    "network interface": ("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    "security group": ("describe_security_groups", "SecurityGroups", "GroupId"),
    "launch template": ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    "endpoint": ("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
}
Filters = list[dict[str, Any]]


class AccountClient:
    """The calls of the drain to the AWS account. Methods that remove something return its names.

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
        """Return the ids of Karpenter's instances for the cluster or, in an existing one, for the stack's pools."""
        return self._instances({"Name": "instance-state-name", "Values": ALIVE})

    def _instances(self, *more: dict[str, Any]) -> list[str]:
        """Return Karpenter's instances, with those that were terminated in the last hour, which EC2 still lists."""
        filters = [*self._of_karpenter(), {"Name": "tag-key", "Values": [LABEL_NODEPOOL]}, *more]
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return [
            instance["InstanceId"]
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]

    def terminate(self, instances: list[str]) -> None:
        """Terminate instances."""
        self._ec2.terminate_instances(InstanceIds=instances)

    def remove_leftovers_of_instances(self) -> list[str]:
        """Remove free interfaces, launch templates and instance profiles."""
        return [
            *self.remove_interfaces(),
            *self._remove("launch template", self._of_karpenter()),
            *self._remove_profiles(),
        ]

    def remove_interfaces(self) -> list[str]:
        """Remove free interfaces of nodes, which would block the deletion of subnets and groups."""
        free = {"Name": "status", "Values": ["available"]}
        removed: list[str] = []
        for filters in (self._of_karpenter(), *self._of_network_plugin()):
            removed += self._remove("network interface", [*filters, free])
        return removed

    def remove_cluster_group(self) -> list[str]:
        """Remove EKS's security group, which remains if an interface uses it when the cluster is deleted."""
        return self._remove("security group", self._tagged(EKS_CLUSTER_TAG))

    def remove_guardduty(self, vpc: str) -> list[str]:
        """Remove GuardDuty's endpoint and group in one VPC. The group can go after the endpoint's interfaces."""
        endpoints = self._find("endpoint", _of_guardduty(vpc))
        if endpoints:
            self._ec2.delete_vpc_endpoints(VpcEndpointIds=endpoints)
        removed = [*(f"endpoint {each}" for each in endpoints)]
        removed += self._remove("security group", _of_guardduty(vpc))
        return [f"GuardDuty's {each}" for each in removed]

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
        searches = [
            ("network interface", self._tagged(CNI_CLUSTER)),
            ("security group", self._tagged(EKS_CLUSTER_TAG)),
            *((resource, _of_guardduty(vpc)) for resource in ("endpoint", "security group") if vpc),
        ]
        return [
            f"{resource} {each}" for resource, filters in searches for each in self._find(resource, filters)
        ]

    def _remove_profiles(self) -> list[str]:
        """Remove instance profiles of this cluster. Lists contain no tags, so it reads the tags of each profile."""
        removed: list[str] = []
        for page in self._iam.get_paginator("list_instance_profiles").paginate():
            for name in (profile["InstanceProfileName"] for profile in page["InstanceProfiles"]):
                try:
                    profile = self._iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
                except self._iam.exceptions.NoSuchEntityException:
                    continue
                tags = {tag["Key"]: tag["Value"] for tag in profile.get("Tags", [])}
                of_pool = self._pools is None or tags.get(NODE_CLASS_TAG) in self._pools
                if of_pool and tags.get(KARPENTER_CLUSTER_TAG) == self._cluster:
                    removed += self._remove_profile(name, profile["Roles"])
        return removed

    def _remove_profile(self, name: str, roles: list[dict[str, Any]]) -> list[str]:
        for role in roles:
            detach = self._iam.remove_role_from_instance_profile
            _passes(detach, InstanceProfileName=name, RoleName=role["RoleName"])
        deleted = _passes(self._iam.delete_instance_profile, InstanceProfileName=name)
        return [f"instance profile {name}"] if deleted else []

    def _of_karpenter(self) -> Filters:
        """Return filters of Karpenter's resources for the cluster or, in an existing one, the stack's pools."""
        of_cluster = self._tagged(KARPENTER_CLUSTER_TAG)
        if self._pools is None:
            return of_cluster
        return [*of_cluster, {"Name": f"tag:{LABEL_NODEPOOL}", "Values": sorted(self._pools)}]

    def _of_network_plugin(self) -> Iterator[Filters]:
        """Return filters of the VPC CNI's interfaces. Their tags name the instance, and no pool.

        An interface of another node may be about to be attached: it is available for some seconds before.
        """
        of_cluster = self._tagged(CNI_CLUSTER)
        if self._pools is None:
            yield of_cluster
            return
        instances = self._instances()
        for first in range(0, len(instances), MAXIMUM_VALUES):
            ids = instances[first : first + MAXIMUM_VALUES]
            yield [*of_cluster, {"Name": f"tag:{CNI_INSTANCE}", "Values": ids}]

    def _tagged(self, tag: str) -> Filters:
        return [{"Name": f"tag:{tag}", "Values": [self._cluster]}]

    def _find(self, resource: str, filters: Filters) -> list[str]:
        operation, key, identity = _RESOURCES[resource]
        pages = self._ec2.get_paginator(operation).paginate(Filters=filters)
        gone = ("deleting", "deleted")
        return sorted(
            each[identity]
            for page in pages
            for each in page[key]
            if str(each.get("State", "")).lower() not in gone
        )

    def _remove(self, resource: str, filters: Filters) -> list[str]:
        delete = getattr(self._ec2, f"delete_{resource.replace(' ', '_')}")
        identity = _RESOURCES[resource][2]
        ids = self._find(resource, filters)
        return [f"{resource} {each}" for each in ids if _passes(delete, **{identity: each})]


def _of_guardduty(vpc: str) -> Filters:
    return [
        {"Name": "vpc-id", "Values": [vpc]},
        {"Name": f"tag:{GUARDDUTY_TAG}", "Values": ["true"]},
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
