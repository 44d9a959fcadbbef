"""The keys that encrypt what a stack keeps."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.shared import iam
from components.shared.tags import named


@dataclass(frozen=True, kw_only=True)
class EncryptionArgs:
    """`principal_arn` is the ARN of any role of the account: the key policies take account and partition from it.

    `deletion_window_days` is the time in which a deleted key can be taken back (7 to 30 days).
    """

    cluster: str
    region: str
    principal_arn: pulumi.Input[str]
    deletion_window_days: int
    protect: bool
    tags: dict[str, str]


class Encryption(pulumi.ComponentResource):
    """Afterwards there are two KMS keys, both with yearly rotation and an alias:

    - one for the Kubernetes secrets of the cluster;
    - one for the data: models and images.
    """

    secrets_key_arn: pulumi.Output[str]
    data_key_arn: pulumi.Output[str]

    def __init__(self, name: str, args: EncryptionArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:encryption:Encryption", name, None, opts)
        self._args = args
        self.secrets_key_arn = self._key(f"{name}-secrets", "Kubernetes secrets")
        self.data_key_arn = self._key(f"{name}-data", "Models and images")
        self.register_outputs({"secretsKeyArn": self.secrets_key_arn, "dataKeyArn": self.data_key_arn})

    def _key(self, name: str, purpose: str) -> pulumi.Output[str]:
        args = self._args

        def policy(arn: str) -> str:
            return json.dumps(iam.key_policy(account=iam.account_of(arn), partition=iam.partition_of(arn)))

        key = aws.kms.Key(
            name,
            description=f"{purpose} of {args.cluster}",
            enable_key_rotation=True,
            deletion_window_in_days=args.deletion_window_days,
            policy=pulumi.Output.from_input(args.principal_arn).apply(policy),
            tags=named(args.tags, name),
            opts=pulumi.ResourceOptions(parent=self, protect=args.protect),
        )
        aws.kms.Alias(
            name,
            name=f"alias/{name}",
            target_key_id=key.key_id,
            opts=pulumi.ResourceOptions(parent=self),
        )
        arn: pulumi.Output[str] = key.arn
        return arn
