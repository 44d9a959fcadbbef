"""The VPC that the cluster and its workers live in."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.shared import cidr
from components.shared.pool import DISCOVERY_TAG
from components.shared.tags import named


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """`zones` are names such as us-west-2a; `cluster` is the name that subnets and group are tagged for."""

    region: str
    cluster: str
    cidr: str
    zones: tuple[str, ...]
    nat_per_zone: bool
    tags: dict[str, str]


class Network(pulumi.ComponentResource):
    """Afterwards there are

    - a VPC with DNS names, and per zone one private subnet (machines and pods) and one public (gateways alone);
    - an internet gateway, and a NAT gateway with its address: one in all, or one per zone;
    - routes: public subnets to the internet gateway, private ones to their NAT gateway, and to S3 through a
      gateway endpoint, so that models and image layers pay no NAT;
    - the workers' security group: everything between its members in both directions, which EFA needs, and the way out.
      It alone carries Karpenter's discovery tag;
    - no rules in the VPC's default security group, so that what is given none is closed.

    `egress` are the resources without which a machine in a private subnet can't reach AWS: what runs in the cluster
    must be gone before them.
    """

    vpc_id: pulumi.Output[str]
    private_subnet_ids: list[pulumi.Output[str]]
    public_subnet_ids: list[pulumi.Output[str]]
    worker_group_id: pulumi.Output[str]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:network:Network", name, None, opts)
        self._name = name
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        layout = cidr.subnets(args.cidr, len(args.zones))
        self.vpc = aws.ec2.Vpc(
            name,
            cidr_block=args.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags=named(args.tags, name),
            opts=self._child,
        )
        self.vpc_id = self.vpc.id
        self.public = self._subnets("public", layout.public, {"kubernetes.io/role/elb": "1"})
        self.private = self._subnets("private", layout.private, {"kubernetes.io/role/internal-elb": "1"})
        self.private_by_zone = dict(zip(args.zones, self.private, strict=True))
        self.private_subnet_ids = [subnet.id for subnet in self.private]
        self.public_subnet_ids = [subnet.id for subnet in self.public]
        # Adopted, not made: every VPC has one, open within and to the world until its rules are taken away.
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default",
            vpc_id=self.vpc.id,
            tags=named(args.tags, f"{name}-default"),
            opts=self._child,
        )
        self.egress: list[pulumi.Resource] = []
        self._routes()
        self.worker_group = self._worker_group()
        self.worker_group_id = self.worker_group.id
        self.register_outputs(
            {
                "vpcId": self.vpc_id,
                "privateSubnetIds": self.private_subnet_ids,
                "publicSubnetIds": self.public_subnet_ids,
                "workerGroupId": self.worker_group_id,
            }
        )

    def _subnets(self, kind: str, blocks: tuple[str, ...], role: dict[str, str]) -> list[aws.ec2.Subnet]:
        return [
            aws.ec2.Subnet(
                f"{self._name}-{kind}-{zone}",
                vpc_id=self.vpc.id,
                cidr_block=block,
                availability_zone=zone,
                map_public_ip_on_launch=False,
                tags=named(self._args.tags, f"{self._name}-{kind}-{zone}", **role),
                opts=self._child,
            )
            for zone, block in zip(self._args.zones, blocks, strict=True)
        ]

    def _routes(self) -> None:
        gateway = aws.ec2.InternetGateway(
            self._name, vpc_id=self.vpc.id, tags=named(self._args.tags, self._name), opts=self._child
        )
        public = self._table("public")
        out = aws.ec2.Route(
            f"{self._name}-public",
            route_table_id=public.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.id,
            opts=self._child,
        )
        self.egress.append(out)
        for zone, subnet in zip(self._args.zones, self.public, strict=True):
            self.egress.append(self._associate(f"public-{zone}", public, subnet))
        tables = [public]
        nat: aws.ec2.NatGateway | None = None
        for index, zone in enumerate(self._args.zones):
            if nat is None or self._args.nat_per_zone:
                nat = self._nat(zone, self.public[index], gateway)
            table = self._table(f"private-{zone}")
            tables.append(table)
            route = aws.ec2.Route(
                f"{self._name}-private-{zone}",
                route_table_id=table.id,
                destination_cidr_block="0.0.0.0/0",
                nat_gateway_id=nat.id,
                opts=self._child,
            )
            self.egress += [route, self._associate(f"private-{zone}", table, self.private[index])]
        self.egress.append(
            aws.ec2.VpcEndpoint(
                f"{self._name}-s3",
                vpc_id=self.vpc.id,
                service_name=f"com.amazonaws.{self._args.region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=[table.id for table in tables],
                tags=named(self._args.tags, f"{self._name}-s3"),
                opts=self._child,
            )
        )

    def _nat(self, zone: str, subnet: aws.ec2.Subnet, gateway: aws.ec2.InternetGateway) -> aws.ec2.NatGateway:
        address = aws.ec2.Eip(
            f"{self._name}-nat-{zone}",
            domain="vpc",
            tags=named(self._args.tags, f"{self._name}-nat-{zone}"),
            opts=self._child,
        )
        return aws.ec2.NatGateway(
            f"{self._name}-{zone}",
            allocation_id=address.id,
            subnet_id=subnet.id,
            tags=named(self._args.tags, f"{self._name}-{zone}"),
            # A NAT gateway without a route out comes up as failed.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[gateway]),
        )

    def _table(self, suffix: str) -> aws.ec2.RouteTable:
        # No inline routes: they fight with the Route resources.
        return aws.ec2.RouteTable(
            f"{self._name}-{suffix}",
            vpc_id=self.vpc.id,
            tags=named(self._args.tags, f"{self._name}-{suffix}"),
            opts=self._child,
        )

    def _associate(
        self, suffix: str, table: aws.ec2.RouteTable, subnet: aws.ec2.Subnet
    ) -> aws.ec2.RouteTableAssociation:
        return aws.ec2.RouteTableAssociation(
            f"{self._name}-{suffix}", route_table_id=table.id, subnet_id=subnet.id, opts=self._child
        )

    def _worker_group(self) -> aws.ec2.SecurityGroup:
        name = f"{self._name}-workers"
        group = aws.ec2.SecurityGroup(
            name,
            description="Workers of the training pools, open to each other (EFA)",
            vpc_id=self.vpc.id,
            tags=named(self._args.tags, name, **{DISCOVERY_TAG: self._args.cluster}),
            opts=self._child,
        )
        # EFA traffic is no IP traffic: only a rule that names the group itself lets it through, in each direction
        # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
        aws.vpc.SecurityGroupIngressRule(
            f"{name}-from-each-other",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            description="Everything between workers",
            tags=self._args.tags,
            opts=self._child,
        )
        aws.vpc.SecurityGroupEgressRule(
            f"{name}-to-each-other",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            description="Everything between workers",
            tags=self._args.tags,
            opts=self._child,
        )
        aws.vpc.SecurityGroupEgressRule(
            f"{name}-out",
            security_group_id=group.id,
            cidr_ipv4="0.0.0.0/0",
            ip_protocol="-1",
            description="Images, S3 and the AWS APIs, through NAT and endpoints",
            tags=self._args.tags,
            opts=self._child,
        )
        return group
