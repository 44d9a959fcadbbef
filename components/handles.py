"""What a stack needs of its network and of its cluster, whether they are made by it or given to it."""

from __future__ import annotations

from typing import Protocol

import pulumi


class NetworkHandles(Protocol):
    """A VPC for a cluster: `components.network.Network` or `components.existing_network.ExistingNetwork`.

    `private_by_zone` maps a zone such as us-west-2b to the id of its subnet for machines. `worker_group` are the
    workers' security group and its rules; empty where the group is given, which `worker_group_id` names all the same.
    `held` are the stack's subnets and groups, which a network interface that somebody left behind keeps from going.
    `egress` are the resources without which a machine can't reach AWS or another machine: what runs in the cluster must
    be gone before them.
    """

    vpc_id: pulumi.Output[str]
    private_by_zone: dict[str, pulumi.Output[str]]
    private_subnet_ids: list[pulumi.Output[str]]
    public_subnet_ids: list[pulumi.Output[str]]
    worker_group_id: pulumi.Output[str]
    worker_group: list[pulumi.Resource]
    held: list[pulumi.Resource]
    egress: list[pulumi.Resource]


class ClusterHandles(Protocol):
    """An EKS cluster: `components.cluster.Cluster` or `components.existing_cluster.ExistingCluster`.

    `kubeconfig` is JSON without a secret. `access` must exist for anything to be changed in the cluster, so that it is
    deleted after everything there; `ready` is what must exist before workloads do. `group_id` is the security group
    that EKS made for the cluster. `security_group_id` is the same for an existing cluster; None where nodes find the
    group by the tag that EKS puts on it.
    `kubernetes` is the version of the control plane; None for an existing cluster.
    """

    kubeconfig: pulumi.Output[str]
    oidc_provider_arn: pulumi.Output[str]
    oidc_issuer: pulumi.Output[str]
    access: list[pulumi.Resource]
    ready: list[pulumi.Resource]
    group_id: pulumi.Output[str]
    security_group_id: str | None
    kubernetes: pulumi.Output[str] | None
