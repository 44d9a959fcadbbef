"""What the EBS CSI driver's controller may do. Pure: texts in, mappings out.

After AWS's managed policies AmazonEBSCSIDriverPolicyV2, which tells the driver's volumes by the tag that the driver
puts on them, and AmazonEBSCSIDriverEKSClusterScopedPolicy, which tells one cluster's by a second tag
(https://docs.aws.amazon.com/aws-managed-policy/latest/reference/AmazonEBSCSIDriverEKSClusterScopedPolicy.html).
Snapshots are left out: no snapshot controller is installed.

The FSx CSI driver has no policy: with file systems that are there already its controller calls nothing, and its nodes
only mount (https://github.com/kubernetes-sigs/aws-fsx-csi-driver, docs/install.md).
"""

from __future__ import annotations

from typing import Any, Final

from components.documents.iam import document

JsonObject = dict[str, Any]

DRIVER_TAG: Final = "ebs.csi.aws.com/cluster"
CLUSTER_TAG: Final = "ebs.csi.aws.com/cluster-name"


def volumes(*, partition: str, region: str, account: str, cluster: str) -> JsonObject:
    """Make, change, attach and delete volumes that carry this cluster's tags, and no others."""

    def arn(kind: str) -> str:
        return f"arn:{partition}:ec2:{region}:{account}:{kind}/*"

    def tagged(by: str) -> JsonObject:
        return {"StringEquals": {f"aws:{by}/{DRIVER_TAG}": "true", f"aws:{by}/{CLUSTER_TAG}": cluster}}

    return document(
        {
            "Sid": "FindVolumesAndTheirMachines",
            "Effect": "Allow",
            # None of these knows resources.
            "Action": [
                "ec2:DescribeAvailabilityZones",
                "ec2:DescribeInstances",
                "ec2:DescribeInstanceTypes",
                "ec2:DescribeVolumes",
                "ec2:DescribeVolumesModifications",
                "ec2:DescribeVolumeStatus",
            ],
            "Resource": "*",
            "Condition": {"StringEquals": {"aws:RequestedRegion": region}},
        },
        {
            "Sid": "MakeVolumesWithTheClustersTags",
            "Effect": "Allow",
            "Action": "ec2:CreateVolume",
            "Resource": arn("volume"),
            "Condition": tagged("RequestTag"),
        },
        {
            "Sid": "TagVolumesWhenTheyAreMade",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": arn("volume"),
            "Condition": {"StringEquals": {"ec2:CreateAction": "CreateVolume"}},
        },
        {
            "Sid": "ChangeTheClustersVolumes",
            "Effect": "Allow",
            "Action": ["ec2:AttachVolume", "ec2:DeleteVolume", "ec2:DetachVolume", "ec2:ModifyVolume"],
            "Resource": arn("volume"),
            "Condition": tagged("ResourceTag"),
        },
        {
            "Sid": "AttachToTheClustersMachines",
            "Effect": "Allow",
            "Action": ["ec2:AttachVolume", "ec2:DetachVolume"],
            "Resource": arn("instance"),
            # Both EKS and Karpenter put it on every machine that they start for the cluster.
            "Condition": {"StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{cluster}": "owned"}},
        },
    )


def volume_key(*, region: str, key_arn: str) -> JsonObject:
    """Use one key for encrypted volumes, through EC2 alone.

    https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html: EC2 needs a grant to use the
    key for as long as a volume is attached, which the driver may give to AWS services only.
    """
    through_ec2 = {"kms:ViaService": f"ec2.{region}.amazonaws.com"}
    return document(
        {
            "Sid": "EncryptVolumes",
            "Effect": "Allow",
            "Action": [
                "kms:Decrypt",
                "kms:DescribeKey",
                "kms:GenerateDataKeyWithoutPlaintext",
                "kms:ReEncryptFrom",
                "kms:ReEncryptTo",
            ],
            "Resource": key_arn,
            "Condition": {"StringEquals": through_ec2},
        },
        {
            "Sid": "LetEc2UseTheKeyForVolumes",
            "Effect": "Allow",
            "Action": "kms:CreateGrant",
            "Resource": key_arn,
            "Condition": {"StringEquals": through_ec2, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        },
    )
