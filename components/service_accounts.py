"""Service accounts for users' pods, each with a role for one bucket; and the account `default` of namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
import pulumi_kubernetes as k8s

from .documents import iam
from .identity import Identity, IdentityArgs


@dataclass(frozen=True, kw_only=True)
class BucketAccess:
    """A service account and its access to one bucket."""

    name: str
    """The name of the service account."""
    namespace: str
    """The namespace of the service account."""
    bucket_arn: pulumi.Input[str]
    """The ARN of the bucket."""
    prefix: str | None = None
    """The prefix of the objects; None for all."""
    key_arn: pulumi.Input[str] | None = None
    """The key that encrypts the bucket, if the role must be allowed to use it."""
    write: bool = False
    """Whether the role can also write objects."""
    more: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Other policies of the role as JSON, by short name."""


@dataclass(frozen=True, kw_only=True)
class ServiceAccountsArgs:
    """The service accounts."""

    prefix: str
    """The prefix of the roles' names."""
    accounts: tuple[BucketAccess, ...]
    """The service accounts and their access."""
    oidc_provider_arn: pulumi.Input[str]
    oidc_issuer: pulumi.Input[str]
    after: list[pulumi.Resource]
    """Resources that must exist first, among them the namespaces of the accounts."""
    tags: dict[str, str]


class ServiceAccounts(pulumi.ComponentResource):
    """Service accounts with access to a bucket.

    Creates, for each account:

    - an IAM role that only this service account can assume, with the policy for its bucket;
    - the service account, with the role's annotation and without a token for the Kubernetes API.
    """

    def __init__(
        self, name: str, args: ServiceAccountsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:identity:ServiceAccounts", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.objects: list[pulumi.Resource] = []
        """The service accounts."""
        for account in args.accounts:
            identity = Identity(
                f"{args.prefix}-{account.name}",
                IdentityArgs(
                    namespace=account.namespace,
                    service_account=account.name,
                    oidc_provider_arn=args.oidc_provider_arn,
                    oidc_issuer=args.oidc_issuer,
                    policies={"bucket": _policy(account), **account.more},
                    tags=args.tags,
                ),
                child,
            )
            made = k8s.core.v1.ServiceAccount(
                f"{account.namespace}-{account.name}",
                metadata={
                    "name": account.name,
                    "namespace": account.namespace,
                    "annotations": {"eks.amazonaws.com/role-arn": identity.role_arn},
                },
                automount_service_account_token=False,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[*args.after, *identity.granted]),
            )
            self.objects.append(made)
        self.register_outputs({"accounts": [account.name for account in args.accounts]})


def _policy(account: BucketAccess) -> pulumi.Output[str]:
    known = pulumi.Output.all(bucket=account.bucket_arn, key=account.key_arn)
    return pulumi.Output.json_dumps(
        known.apply(
            lambda values: iam.bucket_access(
                bucket_arn=values["bucket"],
                prefix=account.prefix,
                key_arn=values["key"],
                write=account.write,
            )
        )
    )


def without_token(
    namespace: str, parent: pulumi.Resource, after: pulumi.Resource
) -> k8s.core.v1.ServiceAccountPatch:
    """Remove the API token from pods of the service account `default` in the namespace that `after` creates.

    This is a patch, because a controller of the cluster creates the account, shortly before or after it.
    """
    return k8s.core.v1.ServiceAccountPatch(
        f"{namespace}-default",
        metadata={"name": "default", "namespace": namespace},
        automount_service_account_token=False,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[after]),
    )
