"""Placement groups, in which EC2 puts machines close to each other."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.documents.pool import Pool


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
