"""The VPC of a cluster and its workers."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents import vpc
from .documents.tags import named
from .endpoints import Endpoints, EndpointsArgs, endpoint_policy
from .flow_logs import FlowLogs, FlowLogsArgs
from .worker_group import WorkerGroup, WorkerGroupArgs


@dataclass(frozen=True, kw_only=True)
class FlowLogSettings:
    """The key and the retention of a VPC's flow logs."""

    key_arn: pulumi.Input[str]
    """The key that encrypts the log group. CloudWatch Logs must be allowed to use it."""
    retention_days: int


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """A VPC to create."""

    region: str
    cluster: str
    cidr: str
    """The address range of the VPC."""
    zones: tuple[str, ...]
    """The zones, such as us-west-2a. Each has a private subnet and, unless `private` is set, a public one."""
    nat_per_zone: bool = False
    """Whether each zone has its own NAT gateway. By default, one serves all zones."""
    private: bool = False
    """Whether the VPC has no internet access. Pods then reach AWS through endpoints only."""
    interface_endpoints: tuple[str, ...] = ()
    flow_logs: FlowLogSettings | None = None
    owner: tuple[str, str] | None = None
    """Partition and account. With `private`, only principals of this account may use the endpoints; None for a shared
    VPC.
    """
    tags: dict[str, str]


class Network(pulumi.ComponentResource):
    """A VPC for a cluster and its workers.

    Creates:

    - a VPC with DNS names. Each zone has a private subnet for nodes and pods, and a public subnet for NAT gateways
      only;
    - an internet gateway, and NAT gateways with their addresses: one for all zones, or one per zone;
    - routes: from public subnets to the internet gateway, from private subnets to their NAT gateway, and from
      private subnets to S3 through a gateway endpoint, so that models and image layers cost no NAT;
    - an interface endpoint for each service in `interface_endpoints`;
    - the security group of workers (`WorkerGroup`);
    - with `flow_logs`, the VPC's flow logs in an encrypted log group.

    It removes all rules from the VPC's default security group, so that a resource without its own group has no
    access. With `private`, there are no public subnets, no internet gateway and no NAT gateway. The outputs
    implement the protocol `trainyard.components.handles.NetworkHandles`.
    """

    vpc_id: pulumi.Output[str]
    private_by_zone: dict[str, pulumi.Output[str]]
    private_subnet_ids: list[pulumi.Output[str]]
    public_subnet_ids: list[pulumi.Output[str]]
    worker_group_id: pulumi.Output[str]
    worker_group: list[pulumi.Resource]
    held: list[pulumi.Resource]
    egress: list[pulumi.Resource]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:network:Network", name, None, opts)
        self._name = name
        self._args = args
        self._owner = args.owner if args.private else None
        self._child = pulumi.ResourceOptions(parent=self)
        layout = vpc.subnets(args.cidr, len(args.zones))
        self.vpc = aws.ec2.Vpc(
            name,
            cidr_block=args.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags=named(args.tags, name),
            opts=self._child,
        )
        """The VPC."""
        self.vpc_id = self.vpc.id
        self.private = self._subnets("private", layout.private, {"kubernetes.io/role/internal-elb": "1"})
        """The private subnets."""
        self.public = (
            [] if args.private else self._subnets("public", layout.public, {"kubernetes.io/role/elb": "1"})
        )
        """The public subnets."""
        self.private_subnet_ids = [subnet.id for subnet in self.private]
        self.public_subnet_ids = [subnet.id for subnet in self.public]
        self.private_by_zone = dict(zip(args.zones, self.private_subnet_ids, strict=True))
        # This adopts the group of the VPC and removes its rules, which allow traffic between members and all egress.
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default",
            vpc_id=self.vpc.id,
            tags=named(args.tags, f"{name}-default"),
            opts=self._child,
        )
        group = WorkerGroup(
            f"{name}-workers",
            WorkerGroupArgs(cluster=args.cluster, vpc_id=self.vpc.id, tags=args.tags),
            self._child,
        )
        self.worker_group_id = group.group_id
        self.worker_group = group.objects
        self.held = [*self.private, *self.public, *group.objects]
        self.egress = [*group.objects]
        tables = self._private_routes(None if args.private else self._way_out())
        self._gateway_endpoint(tables)
        self._interface_endpoints()
        if args.flow_logs is not None:
            FlowLogs(
                f"{name}-flow-logs",
                FlowLogsArgs(
                    cluster=args.cluster,
                    region=args.region,
                    vpc_id=self.vpc.id,
                    key_arn=args.flow_logs.key_arn,
                    retention_days=args.flow_logs.retention_days,
                    tags=args.tags,
                ),
                self._child,
            )
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

    def _way_out(self) -> list[aws.ec2.NatGateway]:
        """Create the internet gateway, its route and NAT gateways. Return the NAT gateway of each zone."""
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
        gateways: list[aws.ec2.NatGateway] = []
        for zone, subnet in zip(self._args.zones, self.public, strict=True):
            shared = bool(gateways) and not self._args.nat_per_zone
            gateways.append(gateways[0] if shared else self._nat(zone, subnet, gateway))
        return gateways

    def _private_routes(self, gateways: list[aws.ec2.NatGateway] | None) -> list[aws.ec2.RouteTable]:
        """Create a route table per private subnet, with a route to the zone's NAT gateway if there is one."""
        tables: list[aws.ec2.RouteTable] = []
        for index, zone in enumerate(self._args.zones):
            table = self._table(f"private-{zone}")
            tables.append(table)
            if gateways is not None:
                route = aws.ec2.Route(
                    f"{self._name}-private-{zone}",
                    route_table_id=table.id,
                    destination_cidr_block="0.0.0.0/0",
                    nat_gateway_id=gateways[index].id,
                    opts=self._child,
                )
                self.egress.append(route)
            self.egress.append(self._associate(f"private-{zone}", table, self.private[index]))
        return tables

    def _gateway_endpoint(self, tables: list[aws.ec2.RouteTable]) -> None:
        # Not for the public route table: public subnets only have NAT gateways, which S3 traffic never reaches.
        self.egress.append(
            aws.ec2.VpcEndpoint(
                f"{self._name}-s3",
                vpc_id=self.vpc.id,
                service_name=f"com.amazonaws.{self._args.region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=[table.id for table in tables],
                policy=endpoint_policy("s3", self._owner),
                tags=named(self._args.tags, f"{self._name}-s3"),
                opts=self._child,
            )
        )

    def _interface_endpoints(self) -> None:
        if self._args.interface_endpoints:
            endpoints = Endpoints(
                f"{self._name}-endpoints",
                EndpointsArgs(
                    region=self._args.region,
                    vpc_id=self.vpc.id,
                    cidr=self._args.cidr,
                    subnet_ids=self.private_subnet_ids,
                    services=self._args.interface_endpoints,
                    owner=self._owner,
                    tags=self._args.tags,
                ),
                self._child,
            )
            self.egress += endpoints.objects

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
            # A NAT gateway without an internet gateway fails.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[gateway]),
        )

    def _table(self, suffix: str) -> aws.ec2.RouteTable:
        # No inline routes: they conflict with the Route resources.
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
