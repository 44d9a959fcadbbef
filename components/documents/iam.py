"""IAM policy documents of all components except Karpenter (`karpenter_iam`).

The caller resolves arguments that come from other resources.

The policy of the EBS CSI driver follows AWS's managed policies AmazonEBSCSIDriverPolicyV2, which recognises the
driver's volumes by the tag that the driver sets, and AmazonEBSCSIDriverEKSClusterScopedPolicy, which recognises one
cluster's by a second tag
(https://docs.aws.amazon.com/aws-managed-policy/latest/reference/AmazonEBSCSIDriverEKSClusterScopedPolicy.html). It has
no permissions for snapshots, because the stack installs no snapshot controller. The FSx CSI driver needs no policy: for
existing file systems its controller calls no API, and its nodes only mount
(https://github.com/kubernetes-sigs/aws-fsx-csi-driver, docs/install.md).
"""

from __future__ import annotations

from typing import Final

from . import JsonObject
from .account import Account

VERSION = "2012-10-17"
# The operations of a KMS grant for the encryption and decryption of data.
KEY_OPERATIONS: Final = (
    *("Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey", "GenerateDataKeyWithoutPlaintext"),
    *("ReEncryptFrom", "ReEncryptTo"),
)

# The same in every partition (https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html).
FLOW_LOGS_SERVICE: Final = "vpc-flow-logs.amazonaws.com"

DRIVER_TAG: Final = "ebs.csi.aws.com/cluster"
CLUSTER_TAG: Final = "ebs.csi.aws.com/cluster-name"


def document(*statements: JsonObject) -> JsonObject:
    """Return a policy document with these statements."""
    return {"Version": VERSION, "Statement": list(statements)}


def allow(
    sid: str, actions: str | list[str], resources: str | list[str], condition: JsonObject | None = None
) -> JsonObject:
    """Return a statement that allows actions on resources. `condition` maps operators to keys and values."""
    statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return statement if condition is None else {**statement, "Condition": condition}


def account_of(arn: str) -> str:
    """Return the account id in an ARN (arn:partition:service:region:account:resource)."""
    return arn.split(":")[4]


def partition_of(arn: str) -> str:
    """Return the partition in an ARN: aws, aws-cn or aws-us-gov."""
    return arn.split(":")[1]


def service_trust(service: str) -> JsonObject:
    """Return the trust policy for an AWS service, such as ec2.amazonaws.com."""
    return document({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}})


def issuer_of(provider_arn: str) -> str:
    """Return the issuer, without https://, in the ARN of an OIDC provider.

    Raises:
        ValueError: It is not the ARN of an OIDC provider.
    """
    issuer = provider_arn.partition(":oidc-provider/")[2]
    if not issuer:
        raise ValueError(f"oidc_provider_arn: '{provider_arn}' must be the ARN of an OIDC provider in IAM")
    return issuer


def service_account_trust(*, provider_arn: str, namespace: str, service_account: str) -> JsonObject:
    """Return the trust policy for one Kubernetes service account (IAM roles for service accounts).

    It compares the subject and the audience for equality
    (https://docs.aws.amazon.com/eks/latest/userguide/associate-service-account-role.html).
    """
    issuer = issuer_of(provider_arn)
    return document(
        {
            "Sid": "AllowOneServiceAccount",
            "Effect": "Allow",
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Principal": {"Federated": provider_arn},
            "Condition": {
                "StringEquals": {
                    f"{issuer}:sub": f"system:serviceaccount:{namespace}:{service_account}",
                    f"{issuer}:aud": "sts.amazonaws.com",
                }
            },
        }
    )


def key_policy(account: Account) -> JsonObject:
    """Return the policy of a KMS key. IAM policies of the account decide, as in the default key policy."""
    return document(
        {
            "Sid": "LetTheAccountsPoliciesDecide",
            "Effect": "Allow",
            "Principal": {"AWS": f"arn:{account.partition}:iam::{account.id}:root"},
            "Action": "kms:*",
            "Resource": "*",
        }
    )


def bucket_tls_only(bucket_arn: str) -> JsonObject:
    """Return a bucket policy that denies every request without TLS."""
    return document(
        {
            "Sid": "DenyRequestsWithoutTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [bucket_arn, f"{bucket_arn}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    )


def model_writer(*, bucket_arn: str, prefix: str, key_arn: str, checkpoints: str | None) -> JsonObject:
    """Return the policy of the trainer: read and write objects under one prefix, and delete nothing.

    With `checkpoints`, their prefix, it can also read, write and delete there, because a run keeps only its newest
    checkpoints.
    """
    below = [prefix] if checkpoints is None else [prefix, checkpoints]
    # A version that is deleted without its id stays for as long as the bucket keeps it.
    keep_checkpoints = allow(
        "KeepCheckpoints",
        ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
        f"{bucket_arn}/{checkpoints}/*",
    )
    return document(
        allow(
            "ReadAndWriteModels",
            ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            f"{bucket_arn}/{prefix}/*",
        ),
        *([] if checkpoints is None else [keep_checkpoints]),
        allow(
            "ListModels" if checkpoints is None else "ListModelsAndCheckpoints",
            "s3:ListBucket",
            bucket_arn,
            {"StringLike": {"s3:prefix": [each for name in below for each in (name, f"{name}/*")]}},
        ),
        *_key(key_arn),
    )


def torchrun_worker(*, bucket_arns: list[str], workspaces: str, logs: str, key_arn: str | None) -> JsonObject:
    """Return the policy of the workers of one namespace: read workspaces, write and read logs.

    They can't write workspaces. They can list both prefixes, because S3 otherwise returns 403 instead of 404 for an
    object that does not exist yet (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html,
    "Permissions").

    Args:
        bucket_arns: The buckets of the namespace's queues.
        workspaces: The prefix of the namespace's workspaces.
        logs: The prefix of the logs of its jobs.
        key_arn: The KMS key of a bucket of the stack, None without one.
    """
    return document(
        _objects("ReadWorkspaces", ["s3:GetObject"], bucket_arns, workspaces),
        _objects("ReadAndWriteLogs", ["s3:GetObject", "s3:PutObject"], bucket_arns, logs),
        _listing(bucket_arns, workspaces, logs),
        *_key(key_arn),
    )


def torchrun_submitter(
    *, bucket_arns: list[str], workspaces: str, logs: str, key_arn: str | None
) -> JsonObject:
    """Return the policy of users who upload workspaces of one namespace and read logs; see `torchrun_worker`."""
    return document(
        _objects("ReadAndWriteWorkspaces", ["s3:GetObject", "s3:PutObject"], bucket_arns, workspaces),
        _objects("ReadLogs", ["s3:GetObject"], bucket_arns, logs),
        _listing(bucket_arns, workspaces, logs),
        *_key(key_arn),
    )


def _objects(sid: str, actions: list[str], bucket_arns: list[str], place: str) -> JsonObject:
    return allow(sid, actions, [f"{arn}/{place}/*" for arn in bucket_arns])


def _listing(bucket_arns: list[str], *places: str) -> JsonObject:
    return allow(
        "ListThem",
        "s3:ListBucket",
        list(bucket_arns),
        {"StringLike": {"s3:prefix": [f"{place}/*" for place in places]}},
    )


def _key(arn: str | None, *, write: bool = True) -> list[JsonObject]:
    if arn is None:
        return []
    return [
        allow("UseTheBucketsKey", ["kms:Decrypt", "kms:GenerateDataKey"] if write else "kms:Decrypt", arn)
    ]


def bucket_access(*, bucket_arn: str, prefix: str | None, key_arn: str | None, write: bool) -> JsonObject:
    """Return the policy to read a bucket or one prefix of it and, with `write`, to write; it allows no deletion.

    `key_arn` is the key that encrypts the bucket. None if the owner of the bucket manages access to its key.
    """
    objects = f"{bucket_arn}/*" if prefix is None else f"{bucket_arn}/{prefix}/*"
    below = None if prefix is None else {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}}
    return document(
        allow(
            "ReadAndWriteObjects" if write else "ReadObjects",
            ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"] if write else "s3:GetObject",
            objects,
        ),
        allow("ListObjects", "s3:ListBucket", bucket_arn, below),
        *_key(key_arn, write=write),
    )


def control_plane_group(cluster: str) -> str:
    """Return the log group of a control plane. EKS defines the name.

    https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
    """
    return f"/aws/eks/{cluster}/cluster"


def flow_logs_group(cluster: str) -> str:
    """Return the log group of the flow logs of a cluster's VPC."""
    return f"/aws/vpc/{cluster}/flow-logs"


def logs_service(region: str) -> str:
    """Return the principal of CloudWatch Logs, which has one per region."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"logs.{region}.{suffix}"


def logs_key_policy(account: Account, log_groups: tuple[str, ...]) -> JsonObject:
    """Return the policy of the key of log groups. IAM policies decide, and CloudWatch Logs can use it for these
    groups.

    The encryption context contains the names of the groups, so that the service can't encrypt groups of other users
    with the key (https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html).
    """
    logs = f"arn:{account.partition}:logs:{account.region}:{account.id}"
    arns = [f"{logs}:log-group:{name}" for name in log_groups]
    return document(
        *key_policy(account)["Statement"],
        {
            "Sid": "LetCloudWatchLogsEncryptTheseGroups",
            "Effect": "Allow",
            "Principal": {"Service": logs_service(account.region)},
            "Action": [
                "kms:Decrypt*",
                "kms:Describe*",
                "kms:Encrypt*",
                "kms:GenerateDataKey*",
                "kms:ReEncrypt*",
            ],
            "Resource": "*",
            "Condition": {"ArnEquals": {"kms:EncryptionContext:aws:logs:arn": arns}},
        },
    )


def flow_logs_trust(account: Account) -> JsonObject:
    """Return the trust policy of a role that only flow logs of this account and region can assume.

    Without the conditions, a flow log of another account could use the role (the confused deputy,
    https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html).
    """
    flow_logs = f"arn:{account.partition}:ec2:{account.region}:{account.id}:vpc-flow-log/*"
    return document(
        {
            "Sid": "AllowFlowLogsOfThisAccount",
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": FLOW_LOGS_SERVICE},
            "Condition": {
                "StringEquals": {"aws:SourceAccount": account.id},
                "ArnLike": {"aws:SourceArn": flow_logs},
            },
        }
    )


def flow_logs_writer(*, log_group_arn: str) -> JsonObject:
    """Return the policy of the flow logs' role: it writes to one log group.

    It does not allow to create the group. Flow logs deliver entries for some minutes after their deletion, and
    would create the group again, outside of any stack.
    """
    group = log_group_arn.removesuffix(":*")
    all_groups, _, _ = group.rpartition(":")
    return document(
        allow(
            "WriteToOneGroup",
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            f"{group}:*",
        ),
        allow("FindTheGroup", "logs:DescribeLogGroups", f"{all_groups}:*"),
    )


def volumes(account: Account, cluster: str) -> JsonObject:
    """Return the policy to create, change, attach and delete only volumes with this cluster's tags."""

    def arn(kind: str) -> str:
        return f"arn:{account.partition}:ec2:{account.region}:{account.id}:{kind}/*"

    def tagged(by: str) -> JsonObject:
        return {"StringEquals": {f"aws:{by}/{DRIVER_TAG}": "true", f"aws:{by}/{CLUSTER_TAG}": cluster}}

    return document(
        allow(
            "FindVolumesAndTheirMachines",
            # These actions don't support resources.
            [
                "ec2:DescribeAvailabilityZones",
                "ec2:DescribeInstances",
                "ec2:DescribeInstanceTypes",
                "ec2:DescribeVolumes",
                "ec2:DescribeVolumesModifications",
                "ec2:DescribeVolumeStatus",
            ],
            "*",
            {"StringEquals": {"aws:RequestedRegion": account.region}},
        ),
        allow("MakeVolumesWithTheClustersTags", "ec2:CreateVolume", arn("volume"), tagged("RequestTag")),
        allow(
            "TagVolumesWhenTheyAreMade",
            "ec2:CreateTags",
            arn("volume"),
            {"StringEquals": {"ec2:CreateAction": "CreateVolume"}},
        ),
        allow(
            "ChangeTheClustersVolumes",
            ["ec2:AttachVolume", "ec2:DeleteVolume", "ec2:DetachVolume", "ec2:ModifyVolume"],
            arn("volume"),
            tagged("ResourceTag"),
        ),
        allow(
            "AttachToTheClustersMachines",
            ["ec2:AttachVolume", "ec2:DetachVolume"],
            arn("instance"),
            # Both EKS and Karpenter put it on every instance that they launch for the cluster.
            {"StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{cluster}": "owned"}},
        ),
    )


def volume_key(*, region: str, key_arn: str) -> JsonObject:
    """Return the policy to use one key for encrypted volumes, through EC2 only.

    EC2 needs a grant to use the key as long as a volume is attached. The driver can create grants for AWS services
    only (https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html).
    """
    through_ec2 = {"kms:ViaService": f"ec2.{region}.amazonaws.com"}
    return document(
        allow(
            "EncryptVolumes",
            [
                "kms:Decrypt",
                "kms:DescribeKey",
                "kms:GenerateDataKeyWithoutPlaintext",
                "kms:ReEncryptFrom",
                "kms:ReEncryptTo",
            ],
            key_arn,
            {"StringEquals": through_ec2},
        ),
        allow(
            "LetEc2UseTheKeyForVolumes",
            "kms:CreateGrant",
            key_arn,
            {"StringEquals": through_ec2, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    )
