"""An existing EKS cluster, which the stack does not own."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents.eks import kubeconfig


@dataclass(frozen=True, kw_only=True)
class ExistingClusterArgs:
    """An existing cluster: the values of DescribeCluster, and its OIDC provider in IAM."""

    name: str
    """The cluster's name."""
    region: str
    endpoint: str
    """The address of the API server."""
    certificate_authority: str
    """The certificate authority of the API server, in base64."""
    oidc_provider_arn: str
    oidc_issuer: str
    """The issuer, with or without https://."""
    security_group_id: str
    """The security group that EKS created for the cluster."""
    worker_role_arn: pulumi.Input[str]
    """The role of Karpenter's nodes, which may join the cluster."""
    profile: str | None = None
    tags: dict[str, str]


class ExistingCluster(pulumi.ComponentResource):
    """An existing EKS cluster.

    Creates an access entry, with which Karpenter's nodes can join the cluster.

    The owner of the cluster manages its system nodes, its add-ons and the permissions of the deploying user. Its
    authentication mode must support access entries. The outputs implement the protocol
    `trainyard.components.handles.ClusterHandles`.
    """

    kubeconfig: pulumi.Output[str]
    oidc_provider_arn: pulumi.Output[str]
    oidc_issuer: pulumi.Output[str]
    access: list[pulumi.Resource]
    ready: list[pulumi.Resource]
    group_id: pulumi.Output[str]
    security_group_id: str | None
    kubernetes: pulumi.Output[str] | None = None

    def __init__(
        self, name: str, args: ExistingClusterArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:cluster:ExistingCluster", name, None, opts)
        self.kubeconfig = pulumi.Output.from_input(
            kubeconfig(
                cluster=args.name,
                region=args.region,
                endpoint=args.endpoint,
                authority=args.certificate_authority,
                profile=args.profile,
            )
        )
        self.oidc_provider_arn = pulumi.Output.from_input(args.oidc_provider_arn)
        self.oidc_issuer = pulumi.Output.from_input(args.oidc_issuer.removeprefix("https://"))
        self.group_id = pulumi.Output.from_input(args.security_group_id)
        self.security_group_id = args.security_group_id
        self.access = [
            aws.eks.AccessEntry(
                f"{name}-workers",
                cluster_name=args.name,
                principal_arn=args.worker_role_arn,
                type="EC2_LINUX",
                tags=args.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
        ]
        self.ready = []
        self.register_outputs(
            {"name": args.name, "oidcProviderArn": self.oidc_provider_arn, "oidcIssuer": self.oidc_issuer}
        )
