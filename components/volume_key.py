"""Grants of a given KMS key to those who launch nodes, whose disks it encrypts."""

from __future__ import annotations

from typing import Final

import pulumi
import pulumi_aws as aws

# https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html. Whoever launches an
# instance uses the key for its disks; without that the instance ends at once (Client.InternalError).
OPERATIONS: Final = (
    "CreateGrant",
    "Decrypt",
    "DescribeKey",
    "Encrypt",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "ReEncryptFrom",
    "ReEncryptTo",
)
# Service-linked roles that launch instances, by the service: those of managed node groups, and spot instances.
AUTO_SCALING: Final = "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
SPOT: Final = "spot.amazonaws.com/AWSServiceRoleForEC2Spot"


def grant(name: str, key_arn: str, grantee: pulumi.Input[str], opts: pulumi.ResourceOptions) -> aws.kms.Grant:
    """Let a role use the key for disks."""
    return aws.kms.Grant(
        name,
        name=name,
        key_id=key_arn,
        grantee_principal=grantee,
        operations=list(OPERATIONS),
        opts=opts,
    )


def service_role(key_arn: str, role: str) -> str:
    """The ARN of a service-linked role in the account of the key."""
    _, partition, _, _, account, _ = key_arn.split(":", 5)
    return f"arn:{partition}:iam::{account}:role/aws-service-role/{role}"
