"""The VPC of a cluster and its workers: `Network` creates one, `ExistingNetwork` uses one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pulumi
import pulumi_aws as aws

from .documents import iam, vpc
from .documents.account import Account
from .documents.pool import DISCOVERY_TAG
from .documents.tags import named
from .documents.vpc import HTTPS

# The aggregation interval of a flow, in seconds. It is the shorter of the two that EC2 offers.
AGGREGATION_SECONDS: Final = 60


@dataclass(frozen=True, kw_only=True)
class FlowLogSettings:
    """The key and the retention of a VPC's flow logs."""

    key_arn: pulumi.Input[str]
    """The key that encrypts the log group `documents.iam.flow_logs_group`. CloudWatch Logs must be allowed to use it:
    `logs_key_arn` of an `Encryption` whose `log_groups` contain this group.
    """
    retention_days: int
    """The retention of the entries."""


class BaseNetwork(pulumi.ComponentResource):
    """A VPC for a cluster: `Network` or `ExistingNetwork`."""

    vpc_id: pulumi.Output[str]
    """The id of the VPC."""
    private_by_zone: dict[str, pulumi.Output[str]]
    """The subnets of nodes, by zone."""
    private_subnet_ids: list[pulumi.Output[str]]
    """The subnets of nodes."""
    public_subnet_ids: list[pulumi.Output[str]]
    """The public subnets."""
    worker_security_group_id: pulumi.Output[str]
    """The security group of workers."""
    worker_security_group: list[pulumi.Resource]
    """That security group and its rules; empty for an existing group."""
    deleted_after_cluster: list[pulumi.Resource]
    """The subnets and security groups of the stack. A leftover network interface prevents their deletion."""
    egress: list[pulumi.Resource]
    """The resources that nodes need to reach AWS and each other. Delete them after everything in the cluster."""


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """A VPC to create."""

    account: Account
    cluster: str
    cidr: str
    """The address range of the VPC."""
    zones: tuple[str, ...]
    """The zones, such as us-west-2a. Each has a private subnet and, unless `private` is set, a public one."""
    tags: dict[str, str]
    nat_per_zone: bool = False
    """Whether each zone has its own NAT gateway. By default, one serves all zones."""
    private: bool = False
    """Whether the VPC has no internet access. Pods then reach AWS through endpoints only."""
    interface_endpoints: tuple[str, ...] = ()
    """Short names of the services with an interface endpoint, such as ecr.api."""
    flow_logs: FlowLogSettings | None = None
    """The flow logs of the VPC; None for none."""
    shared: bool = False
    """Whether other accounts use the VPC, too. If not, only principals of `account` may use the endpoints of a private
    network.
    """


class Network(BaseNetwork):
    """A VPC for a cluster and its workers.

    Creates:

    - a VPC with DNS names. Each zone has a private subnet for nodes and pods, and a public subnet for NAT gateways
      only;
    - an internet gateway, and NAT gateways with their addresses: one for all zones, or one per zone;
    - routes: from public subnets to the internet gateway, from private subnets to their NAT gateway, and from
      private subnets to S3 through a gateway endpoint, so that models and image layers cost no NAT;
    - an interface endpoint for each service in `interface_endpoints`, with the service's public DNS name and open to
      the VPC only;
    - the security group of workers: it allows all traffic between its members and HTTPS egress (images, S3 and the AWS
      APIs, through NAT or endpoints). It alone has Karpenter's discovery tag. Nodes also have EKS's cluster security
      group, which allows traffic between them and the control plane, and all outbound traffic. Egress of nodes is
      therefore not limited;
    - with `flow_logs`, the flow log of accepted and rejected traffic, in an encrypted log group to which only its own
      IAM role can write.

    It removes all rules from the VPC's default security group, so that a resource without its own group has no
    access. With `private`, there are no public subnets, no internet gateway and no NAT gateway.
    """

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        if isinstance(args.zones, str):
            raise ValueError(f"zones: '{args.zones}' is a text. It must be a tuple of two to four zones.")
        super().__init__("trainyard:network:Network", name, None, opts)
        self._name = name
        self._args = args
        self._endpoint_user = args.account if args.private and not args.shared else None
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
        group = _WorkerGroup(f"{name}-workers", args.cluster, self.vpc.id, args.tags, self._child)
        self.worker_security_group_id = group.group_id
        self.worker_security_group = group.objects
        self.deleted_after_cluster = [*self.private, *self.public, *group.objects]
        self.egress = [*group.objects]
        tables = self._private_routes(None if args.private else self._internet_egress())
        self._gateway_endpoint(tables)
        if args.interface_endpoints:
            self.egress += _Endpoints(
                f"{name}-endpoints",
                args,
                args.cidr,
                self.vpc.id,
                self.private_subnet_ids,
                self._endpoint_user,
                self._child,
            ).objects
        if args.flow_logs is not None:
            _FlowLogs(f"{name}-flow-logs", args, args.flow_logs, self.vpc.id, self._child)
        self.register_outputs(
            {
                "vpcId": self.vpc_id,
                "privateSubnetIds": self.private_subnet_ids,
                "publicSubnetIds": self.public_subnet_ids,
                "workerGroupId": self.worker_security_group_id,
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

    def _internet_egress(self) -> list[aws.ec2.NatGateway]:
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
        gateways: list[aws.ec2.NatGateway] = []
        for zone, subnet in zip(self._args.zones, self.public, strict=True):
            self.egress.append(self._associate(f"public-{zone}", public, subnet))
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
                service_name=f"com.amazonaws.{self._args.account.region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=[table.id for table in tables],
                policy=endpoint_policy("s3", self._endpoint_user),
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


@dataclass(frozen=True, kw_only=True)
class ExistingNetworkArgs:
    """An existing VPC. Request endpoints and flow logs only if the VPC has none."""

    account: Account
    cluster: str
    vpc_id: str
    private_subnet_ids: Mapping[str, str]
    """The subnets of nodes, by zone."""
    tags: dict[str, str]
    public_subnet_ids: Mapping[str, str] = field(default_factory=dict)
    """Public subnets, by zone."""
    worker_security_group_id: str | None = None
    """The security group of workers. Without one, the component creates it."""
    cidr: str | None = None
    """The address range of the VPC, which interface endpoints need."""
    interface_endpoints: tuple[str, ...] = ()
    """Short names of the services with an interface endpoint, such as ecr.api."""
    flow_logs: FlowLogSettings | None = None
    """The flow logs of the VPC; None for none."""


class ExistingNetwork(BaseNetwork):
    """An existing VPC, named by its ids.

    Creates the security group of workers, unless `worker_security_group_id` names one, and the interface endpoints and
    flow logs that the arguments request.

    Subnets and routes stay unchanged and get no tags: Karpenter finds the subnets by their ids. The component does
    not check whether they are suitable; `make preflight` does for a stack file.

    Raises:
        ValueError: `interface_endpoints` is set without `cidr`.
    """

    def __init__(
        self, name: str, args: ExistingNetworkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:network:ExistingNetwork", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.vpc_id = pulumi.Output.from_input(args.vpc_id)
        self.private_by_zone = {
            zone: pulumi.Output.from_input(subnet) for zone, subnet in args.private_subnet_ids.items()
        }
        self.private_subnet_ids = list(self.private_by_zone.values())
        self.public_subnet_ids = [
            pulumi.Output.from_input(subnet) for subnet in args.public_subnet_ids.values()
        ]
        self.worker_security_group = []
        if args.worker_security_group_id is None:
            group = _WorkerGroup(f"{name}-workers", args.cluster, args.vpc_id, args.tags, child)
            self.worker_security_group_id = group.group_id
            self.worker_security_group = group.objects
        else:
            self.worker_security_group_id = pulumi.Output.from_input(args.worker_security_group_id)
        self.deleted_after_cluster = [*self.worker_security_group]
        self.egress = [*self.worker_security_group]
        if args.interface_endpoints:
            if args.cidr is None:
                raise ValueError(
                    f"cidr: interface endpoints in {args.vpc_id} need its address range. Set it."
                )
            self.egress += _Endpoints(
                f"{name}-endpoints", args, args.cidr, args.vpc_id, self.private_subnet_ids, None, child
            ).objects
        if args.flow_logs is not None:
            _FlowLogs(f"{name}-flow-logs", args, args.flow_logs, args.vpc_id, child)
        self.register_outputs({"vpcId": self.vpc_id, "workerGroupId": self.worker_security_group_id})


class _WorkerGroup(pulumi.ComponentResource):
    """The security group of Karpenter's nodes."""

    def __init__(
        self,
        name: str,
        cluster: str,
        vpc_id: pulumi.Input[str],
        tags: dict[str, str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:network:WorkerGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            name,
            description="Workers of the training pools, open to each other (EFA)",
            vpc_id=vpc_id,
            tags=named(tags, name, **{DISCOVERY_TAG: cluster}),
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
            tags=named(tags, f"{name}-from-each-other"),
            opts=child,
        )
        outward = aws.vpc.SecurityGroupEgressRule(
            f"{name}-to-each-other",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            description="Everything between workers",
            tags=named(tags, f"{name}-to-each-other"),
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
            tags=named(tags, f"{name}-out"),
            opts=child,
        )
        self.group_id: pulumi.Output[str] = group.id
        self.objects: list[pulumi.Resource] = [group, inward, outward, out]
        self.register_outputs({"groupId": self.group_id})


class _Endpoints(pulumi.ComponentResource):
    """Interface endpoints, and their security group, which allows HTTPS from the VPC and no egress.

    Their public DNS names need the VPC's attributes `enableDnsSupport` and `enableDnsHostnames`. AWS allows at most one
    of `subnet_ids` per zone. Delete nodes that have no other route to these services before `objects`.
    """

    def __init__(
        self,
        name: str,
        args: NetworkArgs | ExistingNetworkArgs,
        cidr: str,
        vpc_id: pulumi.Input[str],
        subnet_ids: list[pulumi.Output[str]],
        user: Account | None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:network:Endpoints", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            name,
            description="Interface endpoints of AWS services",
            vpc_id=vpc_id,
            tags=named(args.tags, name),
            opts=child,
        )
        rule = aws.vpc.SecurityGroupIngressRule(
            f"{name}-from-vpc",
            security_group_id=group.id,
            cidr_ipv4=cidr,
            ip_protocol="tcp",
            from_port=HTTPS,
            to_port=HTTPS,
            description="HTTPS from the VPC",
            tags=named(args.tags, f"{name}-from-vpc"),
            opts=child,
        )
        self.objects: list[pulumi.Resource] = [rule]
        for service in args.interface_endpoints:
            self.objects.append(
                aws.ec2.VpcEndpoint(
                    f"{name}-{service}",
                    vpc_id=vpc_id,
                    service_name=vpc.service_name(args.account.region, service),
                    vpc_endpoint_type="Interface",
                    private_dns_enabled=True,
                    policy=endpoint_policy(service, user),
                    subnet_ids=subnet_ids,
                    security_group_ids=[group.id],
                    tags=named(args.tags, f"{name}-{service}"),
                    opts=child,
                )
            )
        self.register_outputs({"groupId": group.id})


def endpoint_policy(service: str, user: Account | None) -> str | None:
    """Return the policy of an endpoint for `user` as JSON; None for the default policy, which allows all access."""
    policy = vpc.policy(service, user) if user else None
    return None if policy is None else json.dumps(policy)


class _FlowLogs(pulumi.ComponentResource):
    """The flow log of a VPC, its log group, and the role that only flow logs of this account and region can assume."""

    def __init__(
        self,
        name: str,
        args: NetworkArgs | ExistingNetworkArgs,
        logs: FlowLogSettings,
        vpc_id: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:network:FlowLogs", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.cloudwatch.LogGroup(
            name,
            name=iam.flow_logs_group(args.cluster),
            retention_in_days=logs.retention_days,
            kms_key_id=logs.key_arn,
            tags=args.tags,
            opts=child,
        )
        role = aws.iam.Role(
            name,
            description=f"Flow logs of the VPC of {args.cluster}",
            assume_role_policy=json.dumps(iam.flow_logs_trust(args.account)),
            tags=args.tags,
            opts=child,
        )
        granted = aws.iam.RolePolicy(
            name,
            role=role.name,
            policy=group.arn.apply(lambda arn: json.dumps(iam.flow_logs_writer(log_group_arn=arn))),
            opts=child,
        )
        aws.ec2.FlowLog(
            name,
            vpc_id=vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=AGGREGATION_SECONDS,
            tags=args.tags,
            # Without its permissions, the first entries are lost.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[granted]),
        )
        self.register_outputs({"logGroupName": group.name})
