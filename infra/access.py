"""Who in the cluster may do what in AWS: the trainer, and the service accounts of the settings."""

from __future__ import annotations

import pulumi

from components.identity import Identity, IdentityArgs
from components.service_accounts import BucketAccess, ServiceAccounts, ServiceAccountsArgs
from components.shared import checkpoints, iam
from components.shared import contract as c
from components.storage import ModelBucket
from infra.foundation import Foundation
from infra.model import Settings


def trainer_identity(
    settings: Settings,
    base: Foundation,
    bucket: ModelBucket,
    tags: dict[str, str],
    opts: pulumi.ResourceOptions,
) -> Identity:
    """The trainer's role: to read and write models below the settings' prefix, and checkpoints where they go there."""
    keeps = settings.training is not None and settings.training.checkpoints == checkpoints.S3
    policy = pulumi.Output.json_dumps(
        pulumi.Output.all(bucket=bucket.bucket_arn, key=base.keys.data_key_arn).apply(
            lambda known: iam.model_writer(
                bucket_arn=known["bucket"],
                prefix=settings.storage.prefix,
                key_arn=known["key"],
                checkpoints=checkpoints.PREFIX if keeps else None,
            )
        )
    )
    return Identity(
        f"{settings.cluster.prefix}-trainer",
        IdentityArgs(
            namespace=c.TRAINING_NAMESPACE,
            service_account=c.TRAINER_SERVICE_ACCOUNT,
            oidc_provider_arn=base.cluster.oidc_provider_arn,
            oidc_issuer=base.cluster.oidc_issuer,
            policies={"models": policy},
            tags=tags,
        ),
        opts,
    )


def service_accounts(
    settings: Settings,
    base: Foundation,
    bucket: ModelBucket,
    after: list[pulumi.Resource],
    tags: dict[str, str],
    opts: pulumi.ResourceOptions,
) -> ServiceAccounts:
    """The service accounts of the settings; `after` holds their namespaces."""
    accounts = tuple(
        BucketAccess(
            name=account.name,
            namespace=account.namespace,
            bucket_arn=f"arn:{base.partition}:s3:::{account.bucket}" if account.bucket else bucket.bucket_arn,
            # Of the stack's own bucket, what is below the models' prefix.
            prefix=None if account.bucket else settings.storage.prefix,
            key_arn=None if account.bucket else base.keys.data_key_arn,
            write=account.access == "write",
        )
        for account in settings.service_accounts
    )
    return ServiceAccounts(
        "service-accounts",
        ServiceAccountsArgs(
            prefix=settings.cluster.prefix,
            accounts=accounts,
            oidc_provider_arn=base.cluster.oidc_provider_arn,
            oidc_issuer=base.cluster.oidc_issuer,
            after=after,
            tags=tags,
        ),
        opts,
    )
