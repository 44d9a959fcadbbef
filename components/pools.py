"""The Karpenter objects of the node pools, and their placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from .documents import versions
from .documents.pool import Pool, node_class, node_pool, pool_annotations


@dataclass(frozen=True, kw_only=True)
class PoolsArgs:
    """The pools of a cluster."""

    cluster: str
    pools: tuple[Pool, ...]
    subnet_ids: Mapping[str, pulumi.Input[str]]
    """The subnet of nodes, by zone."""
    node_role_name: pulumi.Input[str]
    """The role of nodes."""
    tags: dict[str, str]
    ami: str = versions.AMI
    """The AMI of nodes: an alias with a version, such as al2023@v20260724."""
    after: list[pulumi.Resource] = field(default_factory=list)
    instance_profile: pulumi.Input[str] | None = None
    """The instance profile of nodes, if Karpenter can't create one."""
    worker_security_group_id: pulumi.Input[str] | None = None
    """The security group of workers; by default Karpenter finds it by its tag."""
    cluster_security_group_id: pulumi.Input[str] | None = None
    """The security group that EKS created for the cluster; by default Karpenter finds it by its tag."""
    volume_key: str | None = None
    """The ARN of the key of the nodes' disks; None for the account's default key for EBS."""
    lustre: bool = False
    """Whether pods mount FSx for Lustre."""
    lustre_efa: bool = False
    """Whether the file system has EFA."""


class Pools(pulumi.ComponentResource):
    """The Karpenter objects of the pools.

    Creates an EC2NodeClass and a NodePool for each pool, both with the pool's name.

    They launch no nodes by themselves: Karpenter launches nodes for pending pods. Each node has the label
    `trainyard.dev/pool` with the pool's name, and a taint with the effect NoSchedule. Its key is the resource of the
    pool's devices, such as `nvidia.com/gpu`, or for a CPU pool `trainyard.dev/pool`.

    Raises:
        ValueError: A pool is in a zone that has no subnet.
    """

    def __init__(self, name: str, args: PoolsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        for pool in args.pools:
            if pool.zone not in args.subnet_ids:
                raise ValueError(
                    f"pools: pool '{pool.name}' is in {pool.zone}, which has no subnet. Its zone must be one of"
                    f" {', '.join(sorted(args.subnet_ids))}."
                )
        super().__init__("trainyard:karpenter:Pools", name, None, opts)
        self.objects: list[pulumi.Resource] = []
        """The EC2NodeClasses and NodePools."""
        for pool in args.pools:
            # The next `up` overwrites manual changes instead of reporting a conflict between two field managers.
            force = {"pulumi.com/patchForce": "true"}
            node_class_object = k8s.apiextensions.CustomResource(
                f"{name}-{pool.name}-class",
                api_version="karpenter.k8s.aws/v1",
                kind="EC2NodeClass",
                metadata={"name": pool.name, "annotations": force},
                spec=node_class(
                    pool,
                    cluster=args.cluster,
                    ami=args.ami,
                    role=args.node_role_name,
                    subnet_id=args.subnet_ids[pool.zone],
                    tags=args.tags,
                    instance_profile=args.instance_profile,
                    worker_security_group_id=args.worker_security_group_id,
                    cluster_security_group_id=args.cluster_security_group_id,
                    lustre_efa=args.lustre_efa,
                    volume_key=args.volume_key,
                ),
                opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
            )
            node_pool_object = k8s.apiextensions.CustomResource(
                f"{name}-{pool.name}",
                api_version="karpenter.sh/v1",
                kind="NodePool",
                metadata={"name": pool.name, "annotations": {**force, **pool_annotations(pool)}},
                spec=node_pool(pool, lustre=args.lustre),
                opts=pulumi.ResourceOptions(parent=self, depends_on=[node_class_object, *args.after]),
            )
            self.objects += [node_class_object, node_pool_object]
        self.register_outputs({"pools": [pool.name for pool in args.pools]})


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """The pools of a stack."""

    pools: tuple[Pool, ...]
    tags: dict[str, str]


class Placement(pulumi.ComponentResource):
    """The placement groups of the pools.

    Creates a placement group with the strategy `cluster` for each pool with `makes_placement_group`, which
    `dataclasses.replace` sets.

    Pools can also name an existing group. EC2 can't delete a group while an instance is in it, so the pools must
    depend on `groups`: `destroy` then terminates the instances first
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-groups.html).
    """

    def __init__(self, name: str, args: PlacementArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:network:Placement", name, None, opts)
        names = sorted(
            {
                pool.placement_group
                for pool in args.pools
                if pool.makes_placement_group and pool.placement_group
            }
        )
        self.groups: list[pulumi.Resource] = [
            aws.ec2.PlacementGroup(
                group,
                name=group,
                strategy=aws.ec2.PlacementStrategy.CLUSTER,
                tags=args.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for group in names
        ]
        """The placement groups."""
        self.register_outputs({"groups": names})
