"""The KMS keys of a stack, and grants for a key of node volumes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import pulumi
import pulumi_aws as aws

from .documents import iam
from .documents.account import Account
from .documents.tags import named

# The principal that launches an instance needs the key for its volumes. Without access, EC2 terminates the instance at
# launch (Client.InternalError):
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html.
VOLUME_OPERATIONS: Final = ("CreateGrant", *iam.KEY_OPERATIONS)
# Service-linked roles that launch instances: of managed node groups, and of Spot Instances.
AUTO_SCALING: Final = "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
SPOT: Final = "spot.amazonaws.com/AWSServiceRoleForEC2Spot"


@dataclass(frozen=True, kw_only=True)
class EncryptionArgs:
    """The keys of a stack."""

    cluster: str
    account: Account
    tags: dict[str, str]
    deletion_window_days: int = 30
    """The days in which a deleted key can be restored, 7 to 30."""
    protect: bool = True
    """Whether Pulumi protects the keys of secrets and data from deletion: `destroy` fails."""
    log_groups: tuple[str, ...] = ()
    """The names of the log groups to encrypt (`documents.iam.control_plane_group`, and with flow logs
    `documents.iam.flow_logs_group`). Without any, there is no key for logs.
    """


class Encryption(pulumi.ComponentResource):
    """The KMS keys of a stack.

    Creates KMS keys, each with yearly rotation and an alias:

    - one for the Kubernetes secrets of the cluster;
    - one for the data: models and images;
    - with `log_groups`, one for the logs. CloudWatch Logs can use it for these groups only.

    With `protect`, the first two keys and their aliases are protected from deletion.
    """

    secrets_key_arn: pulumi.Output[str]
    """The key of Kubernetes secrets."""
    data_key_arn: pulumi.Output[str]
    """The key of models and images."""
    logs_key_arn: pulumi.Output[str] | None
    """The key of log groups, if there are any."""

    def __init__(self, name: str, args: EncryptionArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:encryption:Encryption", name, None, opts)
        self._args = args
        self.secrets_key_arn = self._key(f"{name}-secrets", "Kubernetes secrets")
        self.data_key_arn = self._key(f"{name}-data", "Models and images")
        self.logs_key_arn = self._key(f"{name}-logs", "Logs", args.log_groups) if args.log_groups else None
        self.register_outputs({"secretsKeyArn": self.secrets_key_arn, "dataKeyArn": self.data_key_arn})

    def _key(self, name: str, purpose: str, log_groups: tuple[str, ...] = ()) -> pulumi.Output[str]:
        args = self._args
        policy = iam.logs_key_policy(args.account, log_groups) if log_groups else iam.key_policy(args.account)
        # Logs are deleted with the stack.
        protected = pulumi.ResourceOptions(parent=self, protect=args.protect and not log_groups)
        key = aws.kms.Key(
            name,
            description=f"{purpose} of {args.cluster}",
            enable_key_rotation=True,
            deletion_window_in_days=args.deletion_window_days,
            policy=json.dumps(policy),
            tags=named(args.tags, name),
            opts=protected,
        )
        aws.kms.Alias(
            name,
            name=f"alias/{name}",
            target_key_id=key.key_id,
            opts=protected,
        )
        arn: pulumi.Output[str] = key.arn
        return arn


def grant(
    name: str,
    key_arn: pulumi.Input[str],
    grantee: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
    operations: tuple[str, ...] = VOLUME_OPERATIONS,
) -> aws.kms.Grant:
    """Allow a role to use the key, by default for EBS volumes."""
    return aws.kms.Grant(
        name,
        name=name,
        key_id=key_arn,
        grantee_principal=grantee,
        operations=list(operations),
        opts=opts,
    )


def service_role(key_arn: str, role: str) -> str:
    """Return the ARN of a service-linked role in the account of the key."""
    return f"arn:{iam.partition_of(key_arn)}:iam::{iam.account_of(key_arn)}:role/aws-service-role/{role}"
