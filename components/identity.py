"""IAM roles: for service accounts, for service accounts of users with access to a bucket, and for nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from .documents import JsonObject, iam
from .documents.account import Account
from .documents.karpenter_iam import CNI_POLICY, NODE_ROLE_POLICIES


@dataclass(frozen=True, kw_only=True)
class IdentityArgs:
    """A service account and the policies of its role."""

    namespace: str
    """The namespace of the service account."""
    service_account: str
    """The name of the service account."""
    oidc_provider_arn: pulumi.Input[str]
    policies: Mapping[str, pulumi.Input[str]]
    """Policy documents as JSON, by short name. Each becomes a managed policy."""
    tags: dict[str, str]
    managed_policy_arns: Mapping[str, str] = field(default_factory=dict)
    """The ARNs of AWS managed policies, by short name."""


class Identity(pulumi.ComponentResource):
    """An IAM role for one Kubernetes service account.

    Creates:

    - a role that only this service account can assume: the trust policy compares subject and audience for equality;
    - one managed policy per document in `policies`, attached to the role with the AWS managed policies in
      `managed_policy_arns`.

    Pods of the service account need the resources in `granted`.
    """

    role_arn: pulumi.Output[str]
    """The role."""

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:Identity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        trust = pulumi.Output.from_input(args.oidc_provider_arn).apply(
            lambda arn: iam.service_account_trust(
                provider_arn=arn, namespace=args.namespace, service_account=args.service_account
            )
        )
        role = aws.iam.Role(
            name,
            description=f"Service account {args.namespace}/{args.service_account}",
            assume_role_policy=pulumi.Output.json_dumps(trust),
            tags=args.tags,
            opts=child,
        )
        self.granted: list[pulumi.Resource] = [role]
        """The role and its policy attachments, which must exist before a pod of the service account."""
        for short, policy_document in args.policies.items():
            policy = aws.iam.Policy(f"{name}-{short}", policy=policy_document, tags=args.tags, opts=child)
            attachment = aws.iam.RolePolicyAttachment(
                f"{name}-{short}", role=role.name, policy_arn=policy.arn, opts=child
            )
            self.granted.append(attachment)
        for short, arn in args.managed_policy_arns.items():
            self.granted.append(
                aws.iam.RolePolicyAttachment(f"{name}-{short}", role=role.name, policy_arn=arn, opts=child)
            )
        self.role_arn = role.arn
        self.register_outputs({"roleArn": self.role_arn})


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
    additional_policies: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Other policies of the role as JSON, by short name."""


@dataclass(frozen=True, kw_only=True)
class ServiceAccountsArgs:
    """The service accounts."""

    prefix: str
    """The prefix of the roles' names."""
    accounts: tuple[BucketAccess, ...]
    """The service accounts and their access."""
    oidc_provider_arn: pulumi.Input[str]
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
        for account in args.accounts:
            identity = Identity(
                f"{args.prefix}-{account.name}",
                IdentityArgs(
                    namespace=account.namespace,
                    service_account=account.name,
                    oidc_provider_arn=args.oidc_provider_arn,
                    policies={
                        "bucket": bucket_policy(
                            iam.bucket_access,
                            account.bucket_arn,
                            account.key_arn,
                            prefix=account.prefix,
                            write=account.write,
                        ),
                        **account.additional_policies,
                    },
                    tags=args.tags,
                ),
                child,
            )
            k8s.core.v1.ServiceAccount(
                f"{account.namespace}-{account.name}",
                metadata={
                    "name": account.name,
                    "namespace": account.namespace,
                    "annotations": {"eks.amazonaws.com/role-arn": identity.role_arn},
                },
                automount_service_account_token=False,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[*args.after, *identity.granted]),
            )
        self.register_outputs({"accounts": [account.name for account in args.accounts]})


def bucket_policy(
    build: Callable[..., JsonObject],
    bucket_arn: pulumi.Input[str],
    key_arn: pulumi.Input[str] | None,
    **arguments: Any,
) -> pulumi.Output[str]:
    """Return the policy document that `build` returns for a bucket and its key, as JSON."""
    arns = pulumi.Output.all(bucket_arn=bucket_arn, key_arn=key_arn)
    return pulumi.Output.json_dumps(arns.apply(lambda resolved: build(**resolved, **arguments)))


def disable_default_token(
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


def bind_role(
    name: str,
    rules: Sequence[JsonObject],
    *,
    account: str,
    account_namespace: str,
    namespace: str | None,
    parent: pulumi.Resource,
    after: list[pulumi.Resource],
) -> list[pulumi.Resource]:
    """Create a role with these rules, in one namespace or for the cluster, and bind it to a service account."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    resource_name = f"{name}-{namespace}" if namespace else name
    rbac = k8s.rbac.v1
    kind, role_type, binding_type = (
        ("Role", rbac.Role, rbac.RoleBinding)
        if namespace
        else ("ClusterRole", rbac.ClusterRole, rbac.ClusterRoleBinding)
    )
    role: pulumi.Resource = role_type(
        resource_name,
        metadata=metadata,
        rules=list(rules),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=after),
    )
    binding: pulumi.Resource = binding_type(
        resource_name,
        metadata=metadata,
        role_ref={"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": account_namespace}],
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[role]),
    )
    return [role, binding]


@dataclass(frozen=True, kw_only=True)
class NodeRolesArgs:
    """The roles of nodes."""

    prefix: str
    """The prefix of the roles' names."""
    account: Account
    tags: dict[str, str]
    system: bool = True
    """Whether there is a role for system nodes."""
    instance_profile: bool = False
    """Whether the workers' role gets an instance profile. Karpenter can't create one without access to IAM."""
    cni: bool = False
    """Whether nodes have the permissions of the VPC CNI. This is for a VPC CNI without its own role."""


class NodeRoles(pulumi.ComponentResource):
    """The IAM roles of nodes.

    Creates two roles for EC2 instances, with only the policies that a node needs:

    - `system`, for the managed node group;
    - `worker`, for Karpenter's nodes, with an instance profile if `instance_profile` is set.

    They are separate so that Karpenter can only pass the second one. An instance needs its role and `attachments`
    to become a node.
    """

    worker_profile_name: pulumi.Output[str] | None
    """The instance profile of the workers' role, if requested."""

    def __init__(self, name: str, args: NodeRolesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:NodeRoles", name, None, opts)
        self._args = args
        self.attachments: list[pulumi.Resource] = []
        """The policy attachments and the instance profile, which a node needs in addition to its role."""
        self._system = self._role(f"{args.prefix}-system-node") if args.system else None
        self.worker = self._role(f"{args.prefix}-worker-node")
        """The role of Karpenter's nodes."""
        self.worker_profile_name = None
        if args.instance_profile:
            profile = aws.iam.InstanceProfile(
                f"{args.prefix}-worker-node",
                role=self.worker.name,
                tags=args.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
            self.attachments.append(profile)
            self.worker_profile_name = profile.name
        self.register_outputs(
            {
                "systemRoleArn": self._system.arn if self._system else None,
                "workerRoleArn": self.worker.arn,
                "workerProfileName": self.worker_profile_name,
            }
        )

    @property
    def system(self) -> aws.iam.Role:
        """The role of the system nodes.

        Raises:
            LookupError: This stack has no system nodes.
        """
        if self._system is None:
            raise LookupError("the system nodes' role does not exist: this stack has no system nodes")
        return self._system

    def _role(self, name: str) -> aws.iam.Role:
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            name,
            assume_role_policy=json.dumps(iam.service_trust("ec2.amazonaws.com")),
            tags=self._args.tags,
            opts=child,
        )
        for policy in (*NODE_ROLE_POLICIES, *((CNI_POLICY,) if self._args.cni else ())):
            self.attachments.append(
                aws.iam.RolePolicyAttachment(
                    f"{name}-{policy}",
                    role=role.name,
                    policy_arn=self._args.account.managed_policy(policy),
                    opts=child,
                )
            )
        return role
