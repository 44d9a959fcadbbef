"""The IAM policies of Karpenter's controller, and the events of its interruption queue.

They follow the policies that Karpenter 1.14 publishes for its controller (aws/karpenter-provider-aws,
website/content/en/v1.14/getting-started/getting-started-with-karpenter/cloudformation.yaml, read 2026-11-21).
There are several, because one managed policy has at most 6144 characters
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html). Every statement that allows
changes requires the tags of this cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainyard.k8s import names

from . import JsonObject
from .account import Account
from .iam import allow, document

MANAGED_POLICY_LIMIT: Final = 6144

# EventBridge patterns whose events go to the queue: rule name, source, detail type.
INTERRUPTION_EVENTS: Final = (
    ("scheduled-change", "aws.health", "AWS Health Event"),
    ("spot-interruption", "aws.ec2", "EC2 Spot Instance Interruption Warning"),
    ("rebalance", "aws.ec2", "EC2 Instance Rebalance Recommendation"),
    ("instance-state", "aws.ec2", "EC2 Instance State-change Notification"),
    ("reservation-interruption", "aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
)

# The policies that a node needs. Session Manager's is not included, because nobody logs in to a node.
NODE_ROLE_POLICIES: Final = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
# The VPC CNI changes network interfaces. Its service account has this policy. The nodes have it only on an existing
# cluster, where the owner runs the CNI (https://docs.aws.amazon.com/eks/latest/userguide/cni-iam-role.html).
CNI_POLICY: Final = "AmazonEKS_CNI_Policy"
CNI_SERVICE_ACCOUNT: Final = "aws-node"

_NODE_CLASS: Final = "karpenter.k8s.aws/ec2nodeclass"
_CLUSTER_NAME: Final = "eks:eks-cluster-name"
_REGION: Final = "topology.kubernetes.io/region"


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The cluster that the policies are for."""

    account: Account
    cluster: str
    node_role_arn: str
    queue_arn: str

    @property
    def owned(self) -> str:
        """The tag that Karpenter puts on the resources that it creates for this cluster."""
        return f"kubernetes.io/cluster/{self.cluster}"

    @property
    def cluster_arn(self) -> str:
        """The cluster's ARN."""
        return (
            f"arn:{self.account.partition}:eks:{self.account.region}:{self.account.id}:cluster/{self.cluster}"
        )

    def ec2(self, *kinds: str, owner: str = "*") -> list[str]:
        """Return ARN patterns of EC2 resources of these kinds in the region."""
        ec2 = f"arn:{self.account.partition}:ec2:{self.account.region}"
        return [f"{ec2}:{owner}:{kind}/*" for kind in kinds]

    @property
    def profiles(self) -> str:
        """The ARN pattern of the account's instance profiles."""
        return f"arn:{self.account.partition}:iam::{self.account.id}:instance-profile/*"


_MADE_IN_A_LAUNCH: Final = (
    "fleet",
    "instance",
    "volume",
    "network-interface",
    "launch-template",
    "spot-instances-request",
)


def node_lifecycle(scope: Scope) -> JsonObject:
    """Allow to launch instances with this cluster's tags, and to terminate only those."""
    on_request = {f"aws:RequestTag/{scope.owned}": "owned", f"aws:RequestTag/{_CLUSTER_NAME}": scope.cluster}
    request_pool = {f"aws:RequestTag/{names.LABEL_NODEPOOL}": "*"}
    own = {
        "StringEquals": {f"aws:ResourceTag/{scope.owned}": "owned"},
        "StringLike": {f"aws:ResourceTag/{names.LABEL_NODEPOOL}": "*"},
    }
    launch = ["ec2:RunInstances", "ec2:CreateFleet"]
    return document(
        allow(
            "AllowScopedEC2InstanceAccessActions",
            launch,
            [
                *scope.ec2("image", "snapshot", owner=""),
                *scope.ec2("security-group", "subnet", "capacity-reservation", "placement-group"),
            ],
        ),
        allow("AllowScopedEC2LaunchTemplateAccessActions", launch, scope.ec2("launch-template"), own),
        allow(
            "AllowScopedEC2InstanceActionsWithTags",
            [*launch, "ec2:CreateLaunchTemplate"],
            scope.ec2(*_MADE_IN_A_LAUNCH),
            {"StringEquals": on_request, "StringLike": request_pool},
        ),
        allow(
            "AllowScopedResourceCreationTagging",
            "ec2:CreateTags",
            scope.ec2(*_MADE_IN_A_LAUNCH),
            {
                "StringEquals": {
                    **on_request,
                    "ec2:CreateAction": ["RunInstances", "CreateFleet", "CreateLaunchTemplate"],
                },
                "StringLike": request_pool,
            },
        ),
        allow(
            "AllowScopedResourceTagging",
            "ec2:CreateTags",
            scope.ec2("instance"),
            {
                **own,
                "StringEqualsIfExists": {f"aws:RequestTag/{_CLUSTER_NAME}": scope.cluster},
                "ForAllValues:StringEquals": {
                    "aws:TagKeys": [_CLUSTER_NAME, "karpenter.sh/nodeclaim", "Name"]
                },
            },
        ),
        allow(
            "AllowScopedDeletion",
            ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"],
            scope.ec2("instance", "launch-template"),
            own,
        ),
    )


def iam_integration(scope: Scope) -> JsonObject:
    """Allow to pass the node role to instances, and to manage their instance profiles."""
    request = {
        f"aws:RequestTag/{scope.owned}": "owned",
        f"aws:RequestTag/{_CLUSTER_NAME}": scope.cluster,
        f"aws:RequestTag/{_REGION}": scope.account.region,
    }
    resource = {f"aws:ResourceTag/{scope.owned}": "owned", f"aws:ResourceTag/{_REGION}": scope.account.region}
    return document(
        allow(
            "AllowPassingInstanceRole",
            "iam:PassRole",
            scope.node_role_arn,
            {"StringEquals": {"iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]}},
        ),
        allow(
            "AllowScopedInstanceProfileCreationActions",
            "iam:CreateInstanceProfile",
            scope.profiles,
            {"StringEquals": request, "StringLike": {f"aws:RequestTag/{_NODE_CLASS}": "*"}},
        ),
        allow(
            "AllowScopedInstanceProfileTagActions",
            "iam:TagInstanceProfile",
            scope.profiles,
            {
                "StringEquals": {**resource, **request},
                "StringLike": {f"aws:ResourceTag/{_NODE_CLASS}": "*", f"aws:RequestTag/{_NODE_CLASS}": "*"},
            },
        ),
        allow(
            "AllowScopedInstanceProfileActions",
            [
                "iam:AddRoleToInstanceProfile",
                "iam:RemoveRoleFromInstanceProfile",
                "iam:DeleteInstanceProfile",
            ],
            scope.profiles,
            {"StringEquals": resource, "StringLike": {f"aws:ResourceTag/{_NODE_CLASS}": "*"}},
        ),
    )


def eks_integration(scope: Scope) -> JsonObject:
    """Allow to find the API server of this cluster."""
    return document(allow("AllowAPIServerEndpointDiscovery", "eks:DescribeCluster", scope.cluster_arn))


def interruption(scope: Scope) -> JsonObject:
    """Allow to read the interruption queue."""
    return document(
        allow(
            "AllowInterruptionQueueActions",
            ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"],
            scope.queue_arn,
        )
    )


def resource_discovery(scope: Scope) -> JsonObject:
    """Allow to read instance types, prices and other resources. These calls support no resources, so a condition
    limits the region.

    The finalizer of an EC2NodeClass needs `iam:ListInstanceProfiles`.
    """
    described = (
        "CapacityReservations",
        "Images",
        "InstanceStatus",
        "InstanceTypeOfferings",
        "InstanceTypes",
        "Instances",
        "LaunchTemplates",
        "PlacementGroups",
        "SecurityGroups",
        "SpotPriceHistory",
        "Subnets",
    )
    return document(
        allow(
            "AllowRegionalReadActions",
            [f"ec2:Describe{name}" for name in described],
            "*",
            {"StringEquals": {"aws:RequestedRegion": scope.account.region}},
        ),
        allow(
            "AllowSSMReadActions",
            "ssm:GetParameter",
            f"arn:{scope.account.partition}:ssm:{scope.account.region}::parameter/aws/service/*",
        ),
        allow("AllowPricingReadActions", "pricing:GetProducts", "*"),
        allow("AllowUnscopedInstanceProfileListAction", "iam:ListInstanceProfiles", "*"),
        allow("AllowInstanceProfileReadActions", "iam:GetInstanceProfile", scope.profiles),
    )


CONTROLLER_POLICIES: Final = {
    "node-lifecycle": node_lifecycle,
    "iam-integration": iam_integration,
    "eks-integration": eks_integration,
    "interruption": interruption,
    "resource-discovery": resource_discovery,
}


def queue_policy(queue_arn: str, rule_arns: list[str]) -> JsonObject:
    """Return the policy of the interruption queue: only EventBridge may write, for the stack's own rules and over TLS.

    Otherwise a rule of any account could send events, and Karpenter would drain nodes
    (https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-resource-based.html).
    """
    return document(
        {
            "Sid": "AllowEventDelivery",
            "Effect": "Allow",
            "Principal": {"Service": "events.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": queue_arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": rule_arns}},
        },
        {
            "Sid": "DenyRequestsWithoutTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": queue_arn,
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
    )
