"""Every verb that a role of ours is granted: used in the main job, or the reason why it is not.

The main job is the stack `local` from `make up` to `make down`. The AWS emulator keeps which verbs the sessions of
each role used there (`local.aws.calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from components.documents import checkpoints, iam, karpenter_iam
from components.documents.account import Account

REGION, ACCOUNT, CLUSTER = "us-west-2", "123456789012", "trainyard-local"
HERE = Account(id=ACCOUNT, region=REGION)
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/k"
SCOPE = karpenter_iam.Scope(
    account=HERE,
    cluster=CLUSTER,
    node_role_arn=f"arn:aws:iam::{ACCOUNT}:role/worker",
    queue_arn=f"arn:aws:sqs:{REGION}:{ACCOUNT}:{CLUSTER}",
)
Document = Mapping[str, Any]

# By role, the documents that it has; the name is what stands between the cluster's name and the random end.
DOCUMENTS: Final[Mapping[str, Callable[[], list[Document]]]] = {
    "karpenter": lambda: [build(SCOPE) for build in karpenter_iam.CONTROLLER_POLICIES.values()],
    "trainer": lambda: [
        iam.model_writer(
            bucket_arn="arn:aws:s3:::b", prefix="models", key_arn=KEY, checkpoints=checkpoints.PREFIX
        )
    ],
    "service account, read": lambda: [
        iam.bucket_access(bucket_arn="arn:aws:s3:::b", prefix="models", key_arn=KEY, write=False)
    ],
    "service account, write": lambda: [
        iam.bucket_access(bucket_arn="arn:aws:s3:::b", prefix="models", key_arn=KEY, write=True)
    ],
    "ebs-csi": lambda: [
        iam.volumes(HERE, CLUSTER),
        iam.volume_key(region=REGION, key_arn=KEY),
    ],
    "flow logs": lambda: [iam.flow_logs_writer(log_group_arn="arn:aws:logs:us-west-2:1:log-group:g")],
}

# What the roles use in the main job, for sure.
USED: Final[Mapping[str, frozenset[str]]] = {
    "karpenter": frozenset(
        {
            "ec2:CreateFleet",
            "ec2:CreateLaunchTemplate",
            "ec2:CreateTags",
            "ec2:DeleteLaunchTemplate",
            "ec2:DescribeImages",
            "ec2:DescribeInstances",
            "ec2:DescribeInstanceTypeOfferings",
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeLaunchTemplates",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSpotPriceHistory",
            "ec2:DescribeSubnets",
            "ec2:RunInstances",
            "ec2:TerminateInstances",
            "eks:DescribeCluster",
            "iam:AddRoleToInstanceProfile",
            "iam:CreateInstanceProfile",
            "iam:DeleteInstanceProfile",
            "iam:GetInstanceProfile",
            "iam:ListInstanceProfiles",
            "iam:PassRole",
            "iam:RemoveRoleFromInstanceProfile",
            "pricing:GetProducts",
            "sqs:DeleteMessage",
            "sqs:GetQueueUrl",
            "sqs:ReceiveMessage",
            "ssm:GetParameter",
        }
    ),
    # 460 steps save five checkpoints, of which two stay; the probe of the model's place begins an upload and aborts it.
    "trainer": frozenset({"s3:AbortMultipartUpload", "s3:DeleteObject", "s3:ListBucket", "s3:PutObject"}),
}

_BY_S3 = "S3 asks KMS in the caller's name for a bucket with a key; the emulator's S3 does not"
_READ = "data, models and checkpoints that were there before; the main job's run has none"
_DRIVER = (
    "the driver runs on EKS; here volumes are directories, whose disks only tests with a claim have made"
)
_SEED = "for the users of seed 002's service account; the main job has none"
_FLOW = "used by the VPC Flow Logs service itself, whose sessions the emulator does not have"

# Granted and not used for sure in the main job, and why it is granted.
UNUSED: Final[Mapping[str, Mapping[str, str]]] = {
    "karpenter": {
        "ec2:DescribeCapacityReservations": "pools with a reservation; the main job's has none",
        "ec2:DescribeInstanceStatus": "asked every minute; the main job may be done before",
        "ec2:DescribePlacementGroups": "pools with a placement group; the main job's has none",
        "iam:TagInstanceProfile": "instance profiles of an earlier Karpenter that lack a tag",
    },
    "trainer": {
        "kms:Decrypt": _BY_S3,
        "kms:GenerateDataKey": _BY_S3,
        "s3:GetObject": _READ,
    },
    "service account, read": dict.fromkeys(("kms:Decrypt", "s3:GetObject", "s3:ListBucket"), _SEED),
    "service account, write": dict.fromkeys(
        (
            "kms:Decrypt",
            "kms:GenerateDataKey",
            "s3:AbortMultipartUpload",
            "s3:GetObject",
            "s3:ListBucket",
            "s3:PutObject",
        ),
        _SEED,
    ),
    "ebs-csi": dict.fromkeys(
        (
            "ec2:AttachVolume",
            "ec2:CreateTags",
            "ec2:CreateVolume",
            "ec2:DeleteVolume",
            "ec2:DescribeAvailabilityZones",
            "ec2:DescribeInstances",
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeVolumeStatus",
            "ec2:DescribeVolumes",
            "ec2:DescribeVolumesModifications",
            "ec2:DetachVolume",
            "ec2:ModifyVolume",
            "kms:CreateGrant",
            "kms:Decrypt",
            "kms:DescribeKey",
            "kms:GenerateDataKeyWithoutPlaintext",
            "kms:ReEncryptFrom",
            "kms:ReEncryptTo",
        ),
        _DRIVER,
    ),
    "flow logs": dict.fromkeys(
        ("logs:CreateLogStream", "logs:DescribeLogGroups", "logs:DescribeLogStreams", "logs:PutLogEvents"),
        _FLOW,
    ),
}

# Denied in the main job without harm, and why.
DENIED: Final[Mapping[str, Mapping[str, str]]] = {
    "karpenter": {
        "ec2:DeleteLaunchTemplate": "asked once more for a template that is deleted: nothing carries the tags then",
    },
}


def role_of(name: str) -> str:
    """The role's name in these tables from its name in the account."""
    return name.removeprefix(f"{CLUSTER}-").rpartition("-")[0]
