"""The security group of Karpenter's nodes."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents.pool import DISCOVERY_TAG
from .documents.tags import named

HTTPS = 443


@dataclass(frozen=True, kw_only=True)
class WorkerGroupArgs:
    """The VPC of the group."""

    cluster: str
    vpc_id: pulumi.Input[str]
    tags: dict[str, str]


class WorkerGroup(pulumi.ComponentResource):
    """The security group of Karpenter's nodes.

    Creates a security group

    - that allows all traffic between its members, in both directions;
    - that allows HTTPS egress (images, S3 and the AWS APIs, through NAT or endpoints);
    - that allows no other ingress or egress;
    - that has Karpenter's discovery tag, which no other group has.

    Nodes also have the cluster's own security group, which allows traffic between them and the control plane.
    """

    group_id: pulumi.Output[str]
    """The security group."""

    def __init__(self, name: str, args: WorkerGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:network:WorkerGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            name,
            description="Workers of the training pools, open to each other (EFA)",
            vpc_id=args.vpc_id,
            tags=named(args.tags, name, **{DISCOVERY_TAG: args.cluster}),
            opts=child,
        )
        # EFA traffic is not IP traffic: only rules that reference the group itself allow it, one in each direction
        # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
        inward = aws.vpc.SecurityGroupIngressRule(
            f"{name}-from-each-other",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            description="Everything between workers",
            tags=named(args.tags, f"{name}-from-each-other"),
            opts=child,
        )
        outward = aws.vpc.SecurityGroupEgressRule(
            f"{name}-to-each-other",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            description="Everything between workers",
            tags=named(args.tags, f"{name}-to-each-other"),
            opts=child,
        )
        out = aws.vpc.SecurityGroupEgressRule(
            f"{name}-out",
            security_group_id=group.id,
            cidr_ipv4="0.0.0.0/0",
            ip_protocol="tcp",
            from_port=HTTPS,
            to_port=HTTPS,
            description="Images, S3 and the AWS APIs, through NAT and endpoints",
            tags=named(args.tags, f"{name}-out"),
            opts=child,
        )
        self.group_id = group.id
        self.objects: list[pulumi.Resource] = [group, inward, outward, out]
        """The group and its rules."""
        self.register_outputs({"groupId": self.group_id})
