"""The VPC as data: the CIDR blocks of its subnets, and its endpoints with their policies.

A private network needs these interface endpoints
(https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html and "Private Clusters" in
https://karpenter.sh/docs/getting-started/getting-started-with-karpenter/). S3 always has a gateway endpoint. IAM and
the price list have no endpoint: `settings.isolatedVPC` tells Karpenter so, and its nodes use an instance profile that
the stack creates.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from . import JsonObject
from .account import Account
from .iam import document

HTTPS: Final = 443
EKS_NODES: Final = {
    "ec2": "nodes and VPC CNI attach interfaces and addresses; Karpenter launches instances",
    "ecr.api": "the kubelet's credentials for images",
    "ecr.dkr": "images; their layers come from S3",
    "eks": "a node reads its cluster's endpoint and authority; Karpenter describes the cluster",
    "eks-auth": "credentials by EKS Pod Identity, for add-ons of the user",
    "logs": "CloudWatch Logs, for log agents on nodes",
    "monitoring": "CloudWatch metrics, for agents on nodes",
    "sqs": "Karpenter's interruption queue",
    "ssm": "Karpenter reads the AMI ids; Session Manager",
    "ssmmessages": "Session Manager, the only way onto a node",
    "ec2messages": "the same, for SSM agents before 3.3.40",
    "sts": "roles of service accounts",
}
FILE_SYSTEM: Final = {"fsx": "the FSx CSI driver's controller; mounts themselves need no endpoint"}
# The stack does not need these; they are for users' workloads.
OTHERS: Final = {
    "elasticloadbalancing": "Services of type LoadBalancer, Ingresses",
    "autoscaling": "Cluster Autoscaler",
    "kms": "programs that encrypt by themselves; S3 and EBS ask KMS on their own",
    "secretsmanager": "secrets of programs",
}
# These have gateway endpoints, and S3 has one always (https://docs.aws.amazon.com/vpc/latest/privatelink/gateway-endpoints.html).
GATEWAYS: Final = ("s3", "dynamodb")
# Requests without a principal of the account that must be allowed, by service: actions and resources. Service accounts
# assume their roles with a token only. Layers of ECR images and packages of Amazon Linux are read unsigned or with
# signatures of AWS (https://docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html). Public data sets are
# read unsigned.
_OPEN: Final = {
    "sts": (("sts:AssumeRoleWithWebIdentity",), "arn:{partition}:iam::{account}:role/*"),
    "s3": (("s3:GetObject", "s3:ListBucket"), "*"),
}
KNOWN: Final = {**EKS_NODES, **FILE_SYSTEM, **OTHERS}

# AWS takes VPCs and subnets of /16 to /28 (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html).
LARGEST_PREFIX: Final = 16
SMALLEST_PREFIX: Final = 28
# Every pod and every interface of a worker uses an address, so a smaller VPC is not useful.
SMALLEST_VPC_PREFIX: Final = 20
ZONES: Final = range(2, 5)
# A wider range of public addresses is not one organisation's: an office or a provider's gateway has at most a /16.
WIDEST_PUBLIC_PREFIX: Final = 16


def private_endpoints(*, file_system: bool, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the sorted interface endpoints of a network without internet access. `more` are those of the settings.

    A service in `more` replaces the same service under its short name.

    An interface endpoint costs about 0.01 USD per hour and zone (https://aws.amazon.com/privatelink/pricing/).
    """
    services = (*EKS_NODES, *(FILE_SYSTEM if file_system else ()), *more)
    # Two endpoints of one service can't both have its private DNS name.
    return tuple(sorted({short_name(service): service for service in services}.values()))


def full_name(service: str) -> tuple[str, str] | None:
    """Return region and short name in the full name of an AWS service; None if it is not a full name."""
    match = re.fullmatch(
        r"(?:cn\.)?com\.amazonaws\.([a-z]{2}(?:-[a-z]+)+-[0-9])\.([a-z0-9][a-z0-9.-]*)", service
    )
    return (match[1], match[2]) if match else None


def short_name(service: str) -> str:
    """Return the short name of a service."""
    full = full_name(service)
    return full[1] if full else service


def service_name(region: str, service: str) -> str:
    """Return the name of an endpoint service, such as com.amazonaws.us-west-2.ecr.api.

    A name that contains `amazonaws` is returned unchanged: in China some services have another prefix.
    """
    return service if "amazonaws" in service else f"com.amazonaws.{region}.{service}"


def policy(service: str, account: Account) -> JsonObject | None:
    """Return a policy that allows only principals of the account to use an endpoint.

    Credentials of other accounts can't be used in the VPC then. None if the service is not known to support endpoint
    policies (https://docs.aws.amazon.com/vpc/latest/privatelink/aws-services-privatelink-support.html).
    """
    short = short_name(service)
    if short not in KNOWN and short not in GATEWAYS:
        return None
    own: JsonObject = {
        "Sid": "OwnAccount",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "*",
        "Resource": "*",
        "Condition": {"StringEquals": {"aws:PrincipalAccount": account.id}},
    }
    more = _OPEN.get(short)
    if more is None:
        return document(own)
    actions, resource = more
    opened = {
        "Sid": "Anybody",
        "Effect": "Allow",
        "Principal": "*",
        "Action": list(actions),
        "Resource": resource.format(account=account.id, partition=account.partition),
    }
    return document(own, opened)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The ranges of subnets: one private and one public range per zone, in the order of the zones."""

    private: tuple[str, ...]
    public: tuple[str, ...]


def subnets(cidr: str, zones: int) -> Layout:
    """Divide a VPC's range for `zones` zones.

    Nodes and pods are in the private subnets, so these get all equal blocks except one. The last block contains the
    public subnets. Fewer zones never move a subnet as long as the number of blocks stays the same.

    Raises:
        ValueError: The range is not an IPv4 network of /16 to /20, or `zones` is not 2, 3 or 4.
    """
    must_be = (
        f"it must be a private range of /{LARGEST_PREFIX} to /{SMALLEST_VPC_PREFIX}, such as 10.64.0.0/16"
    )
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise ValueError(f"{error}; {must_be}") from None
    if not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_VPC_PREFIX:
        raise ValueError(f"{cidr} has a prefix of /{network.prefixlen}; {must_be}")
    if zones not in ZONES:
        raise ValueError(f"{zones} zones: the number must be 2, 3 or 4")
    extra = 3 if zones == ZONES[-1] else 2
    blocks = list(network.subnets(prefixlen_diff=extra))
    public = list(blocks[-1].subnets(prefixlen_diff=2))
    return Layout(
        private=tuple(str(block) for block in blocks[:zones]),
        public=tuple(str(block) for block in public[:zones]),
    )
