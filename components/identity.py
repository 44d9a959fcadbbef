"""An IAM role for one Kubernetes service account."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws

from .documents import iam


@dataclass(frozen=True, kw_only=True)
class IdentityArgs:
    """A service account and the policies of its role."""

    namespace: str
    """The namespace of the service account."""
    service_account: str
    """The name of the service account."""
    oidc_provider_arn: pulumi.Input[str]
    oidc_issuer: pulumi.Input[str]
    policies: Mapping[str, pulumi.Input[str]]
    """Policy documents as JSON, by short name. Each becomes a managed policy."""
    managed: Mapping[str, str] = field(default_factory=dict)
    """The ARNs of AWS managed policies, by short name."""
    tags: dict[str, str]


class Identity(pulumi.ComponentResource):
    """An IAM role for one Kubernetes service account.

    Creates:

    - a role that only this service account can assume: the trust policy compares subject and audience for equality;
    - one managed policy per document in `policies`, attached to the role with the AWS managed policies in
      `managed`.

    Pods of the service account need the resources in `granted`.
    """

    role_arn: pulumi.Output[str]
    """The role."""

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:Identity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)

        def trust(resolved: Mapping[str, str]) -> str:
            return json.dumps(
                iam.service_account_trust(
                    provider_arn=resolved["provider"],
                    issuer=resolved["issuer"],
                    namespace=args.namespace,
                    service_account=args.service_account,
                )
            )

        role = aws.iam.Role(
            name,
            description=f"Service account {args.namespace}/{args.service_account}",
            assume_role_policy=pulumi.Output.all(
                provider=args.oidc_provider_arn, issuer=args.oidc_issuer
            ).apply(trust),
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
        for short, arn in args.managed.items():
            self.granted.append(
                aws.iam.RolePolicyAttachment(f"{name}-{short}", role=role.name, policy_arn=arn, opts=child)
            )
        self.role_arn = role.arn
        self.register_outputs({"roleArn": self.role_arn})
