"""AWS permissions of pods: the roles of the trainer and of the service accounts in the settings.

Workers of torchrun queues use one of these roles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pulumi

from components.documents import checkpoints, iam
from components.documents.torchrun_queue import LOGS_PREFIX, WORKSPACES_PREFIX, Queue
from components.identity import (
    BucketAccess,
    Identity,
    IdentityArgs,
    ServiceAccounts,
    ServiceAccountsArgs,
    bucket_policy,
)
from components.storage import ModelBucket
from infra.foundation import Foundation
from infra.settings import Settings
from trainyard.k8s import names


def trainer_identity(
    settings: Settings,
    foundation: Foundation,
    bucket: ModelBucket,
    opts: pulumi.ResourceOptions,
) -> Identity:
    """Return the trainer's role. It reads and writes models below the prefix of the settings.

    It also reads and writes checkpoints, if the settings keep them in the bucket.
    """
    keeps = settings.training is not None and settings.training.checkpoints == checkpoints.S3
    policy = bucket_policy(
        iam.model_writer,
        bucket.bucket_arn,
        foundation.keys.data_key_arn,
        prefix=settings.storage.prefix,
        checkpoints=checkpoints.PREFIX if keeps else None,
    )
    return Identity(
        f"{settings.prefix}-trainer",
        IdentityArgs(
            namespace=names.TRAINING_NAMESPACE,
            service_account=names.TRAINER_SERVICE_ACCOUNT,
            oidc_provider_arn=foundation.cluster.oidc_provider_arn,
            policies={
                "models": policy,
                **_workspaces(
                    settings, foundation, bucket, names.TRAINING_NAMESPACE, names.TRAINER_SERVICE_ACCOUNT
                ),
            },
            tags=settings.resource_tags,
        ),
        opts,
    )


def service_accounts(
    settings: Settings,
    foundation: Foundation,
    bucket: ModelBucket,
    after: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> ServiceAccounts:
    """Create the service accounts of the settings. `after` are their namespaces."""
    arn_prefix = f"arn:{settings.account.partition}:s3:::"
    accounts = tuple(
        BucketAccess(
            name=account.name,
            namespace=account.namespace,
            bucket_arn=f"{arn_prefix}{account.bucket}" if account.bucket else bucket.bucket_arn,
            # In the stack's own bucket, the account has access below the prefix of the models.
            prefix=None if account.bucket else settings.storage.prefix,
            key_arn=None if account.bucket else foundation.keys.data_key_arn,
            write=account.access == "write",
            additional_policies=_workspaces(settings, foundation, bucket, account.namespace, account.name),
        )
        for account in settings.service_accounts
    )
    return ServiceAccounts(
        "service-accounts",
        ServiceAccountsArgs(
            prefix=settings.prefix,
            accounts=accounts,
            oidc_provider_arn=foundation.cluster.oidc_provider_arn,
            after=after,
            tags=settings.resource_tags,
        ),
        opts,
    )


def submitter_policies(
    settings: Settings, foundation: Foundation, bucket: ModelBucket
) -> dict[str, pulumi.Output[str]]:
    """Return the IAM policy for users who submit jobs, by namespace. Namespaces without a bucket have none."""
    namespaces = sorted({queue.namespace for queue in settings.queues if queue.fetches})
    return {
        namespace: _workspace_policy(
            settings,
            [queue for queue in settings.queues if queue.fetches and queue.namespace == namespace],
            foundation,
            bucket,
            iam.torchrun_submitter,
        )
        for namespace in namespaces
    }


def _workspaces(
    settings: Settings, foundation: Foundation, bucket: ModelBucket, namespace: str, account: str
) -> dict[str, pulumi.Output[str]]:
    """Return the policy of a service account whose pods use a workspace bucket, by its short name; {} for others."""
    queues = [
        queue
        for queue in settings.queues
        if queue.fetches and (queue.namespace, queue.service_account) == (namespace, account)
    ]
    if not queues:
        return {}
    return {"workspaces": _workspace_policy(settings, queues, foundation, bucket, iam.torchrun_worker)}


def _workspace_policy(
    settings: Settings,
    queues: Sequence[Queue],
    foundation: Foundation,
    bucket: ModelBucket,
    build: Callable[..., dict[str, Any]],
) -> pulumi.Output[str]:
    """Return a policy for the workspaces and logs of one namespace."""
    own = any(queue.own_bucket for queue in queues)
    existing = sorted({queue.bucket for queue in queues if queue.bucket is not None})

    def policy(bucket_arn: str, key_arn: str) -> dict[str, Any]:
        arns = [f"arn:{settings.account.partition}:s3:::{name}" for name in existing]
        return build(
            bucket_arns=[bucket_arn, *arns] if own else arns,
            workspaces=f"{WORKSPACES_PREFIX}/{queues[0].namespace}",
            logs=f"{LOGS_PREFIX}/{queues[0].namespace}",
            key_arn=key_arn if own else None,
        )

    return bucket_policy(policy, bucket.bucket_arn, foundation.keys.data_key_arn)
