"""Grant the KMS key of node volumes to the roles that launch nodes."""

from __future__ import annotations

from typing import Final

import pulumi
import pulumi_aws as aws

# The principal that launches an instance needs the key for its volumes. Without access, EC2 terminates the instance at
# launch (Client.InternalError):
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html.
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
# Service-linked roles that launch instances: of managed node groups, and of Spot Instances.
AUTO_SCALING: Final = "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
SPOT: Final = "spot.amazonaws.com/AWSServiceRoleForEC2Spot"


def grant(name: str, key_arn: str, grantee: pulumi.Input[str], opts: pulumi.ResourceOptions) -> aws.kms.Grant:
    """Allow a role to use the key for EBS volumes."""
    return aws.kms.Grant(
        name,
        name=name,
        key_id=key_arn,
        grantee_principal=grantee,
        operations=list(OPERATIONS),
        opts=opts,
    )


def service_role(key_arn: str, role: str) -> str:
    """Return the ARN of a service-linked role in the account of the key."""
    _, partition, _, _, account, _ = key_arn.split(":", 5)
    return f"arn:{partition}:iam::{account}:role/aws-service-role/{role}"
