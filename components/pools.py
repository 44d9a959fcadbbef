"""The node pools as Karpenter's objects, and their placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from components.documents.pool import Pool, node_class, node_pool, pool_annotations


@dataclass(frozen=True, kw_only=True)
class PoolsArgs:
    """`subnet_ids` maps a zone to the subnet of its machines; `ami` is an alias with a version.

    `instance_profile` is given where Karpenter can't make one, in a network without a way to IAM. The two security
    groups are found by their tags where their ids are not given.
    `volume_key` is the ARN of the key of their disks; None: the account's default key for EBS. `lustre` says
    whether pods mount FSx for Lustre,
    `lustre_efa` whether that file system has EFA.
    """

    cluster: str
    pools: tuple[Pool, ...]
    subnet_ids: Mapping[str, pulumi.Input[str]]
    node_role_name: pulumi.Input[str]
    ami: str
    after: list[pulumi.Resource]
    tags: dict[str, str]
    instance_profile: pulumi.Input[str] | None = None
    worker_group_id: pulumi.Input[str] | None = None
    cluster_group_id: pulumi.Input[str] | None = None
    volume_key: str | None = None
    lustre: bool = False
    lustre_efa: bool = False


class Pools(pulumi.ComponentResource):
    """Afterwards there are, per pool, an EC2NodeClass and a NodePool of the pool's name.

    Nothing is bought by that: Karpenter buys machines when pods ask for them.
    """

    def __init__(self, name: str, args: PoolsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:karpenter:Pools", name, None, opts)
        self.objects: list[pulumi.Resource] = []
        for pool in args.pools:
            # What somebody changed by hand is ours again with the next `up`, not a conflict between two owners.
            force = {"pulumi.com/patchForce": "true"}
            machine = k8s.apiextensions.CustomResource(
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
                    worker_group_id=args.worker_group_id,
                    cluster_group_id=args.cluster_group_id,
                    lustre_efa=args.lustre_efa,
                    volume_key=args.volume_key,
                ),
                opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
            )
            ceiling = k8s.apiextensions.CustomResource(
                f"{name}-{pool.name}",
                api_version="karpenter.sh/v1",
                kind="NodePool",
                metadata={"name": pool.name, "annotations": {**force, **pool_annotations(pool)}},
                spec=node_pool(pool, lustre=args.lustre),
                opts=pulumi.ResourceOptions(parent=self, depends_on=[machine, *args.after]),
            )
            self.objects += [machine, ceiling]
        self.register_outputs({"pools": [pool.name for pool in args.pools]})


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """The pools of the stack; `placement_group` is a group's name, ours where `makes_placement_group` is set."""

    pools: tuple[Pool, ...]
    tags: dict[str, str]


class Placement(pulumi.ComponentResource):
    """Afterwards there is, per pool that asks for one, a placement group with the strategy `cluster`.

    A group that somebody else made is only named by its pool. EC2 keeps a group while a machine is in it, so that the
    pools come after `groups`, and on `destroy` the machines go first
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
        self.register_outputs({"groups": names})
