"""The outputs of networks and clusters, new or existing, that other components use."""

from __future__ import annotations

from typing import Protocol

import pulumi


class NetworkHandles(Protocol):
    """A VPC for a cluster: `Network` or `ExistingNetwork`."""

    vpc_id: pulumi.Output[str]
    """The id of the VPC."""
    private_by_zone: dict[str, pulumi.Output[str]]
    """The subnets of nodes, by zone."""
    private_subnet_ids: list[pulumi.Output[str]]
    """The subnets of nodes."""
    public_subnet_ids: list[pulumi.Output[str]]
    """The public subnets."""
    worker_group_id: pulumi.Output[str]
    """The security group of workers."""
    worker_group: list[pulumi.Resource]
    """That security group and its rules; empty for an existing group."""
    held: list[pulumi.Resource]
    """The subnets and security groups of the stack. A leftover network interface prevents their deletion."""
    egress: list[pulumi.Resource]
    """The resources that nodes need to reach AWS and each other. Delete them after everything in the cluster."""


class ClusterHandles(Protocol):
    """An EKS cluster: `Cluster` or `ExistingCluster`."""

    kubeconfig: pulumi.Output[str]
    """The kubeconfig as JSON, without a secret."""
    oidc_provider_arn: pulumi.Output[str]
    """The OIDC provider of the cluster in IAM, for roles of service accounts."""
    oidc_issuer: pulumi.Output[str]
    """Its issuer, without https://."""
    access: list[pulumi.Resource]
    """The resources that give access to the cluster. Delete them after everything in the cluster."""
    ready: list[pulumi.Resource]
    """The resources that workloads need: the node group and the add-ons; empty for an existing cluster."""
    group_id: pulumi.Output[str]
    """The security group that EKS created for the cluster."""
    security_group_id: str | None
    """The id of that group for an existing cluster; None if Karpenter finds the group by its tag."""
    kubernetes: pulumi.Output[str] | None
    """The version of the control plane; None for an existing cluster."""
