"""Rules for the VPC: subnets, ways in and out, records of traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.model import Resource, Rules, Stack

RULES: Final = Rules()

VPC: Final = "aws:ec2/vpc:Vpc"
SUBNET: Final = "aws:ec2/subnet:Subnet"
ROUTE: Final = "aws:ec2/route:Route"
ROUTE_TABLE: Final = "aws:ec2/routeTable:RouteTable"
TABLE_OF_SUBNET: Final = "aws:ec2/routeTableAssociation:RouteTableAssociation"
GATEWAY: Final = "aws:ec2/internetGateway:InternetGateway"
ENDPOINT: Final = "aws:ec2/vpcEndpoint:VpcEndpoint"
FLOW_LOG: Final = "aws:ec2/flowLog:FlowLog"
DEFAULT_GROUP: Final = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
LOG_GROUP: Final = "aws:cloudwatch/logGroup:LogGroup"

NODE_GROUP: Final = "aws:eks/nodeGroup:NodeGroup"
NODE_CLASS: Final = "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"
LUSTRE: Final = "aws:fsx/lustreFileSystem:LustreFileSystem"
# What has machines or data in subnets, and the property that names these.
IN_SUBNETS: Final = {NODE_GROUP: "subnetIds", NODE_CLASS: "spec", LUSTRE: "subnetIds"}

# What a node can't do without where there is no NAT: https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html
NEEDED_ENDPOINTS: Final = ("ec2", "ecr.api", "ecr.dkr", "eks", "logs", "sqs", "sts")
LEAST_RETENTION_DAYS: Final = 365


@RULES.rule("subnet-without-public-addresses", "CKV_AWS_130", "AVD-AWS-0164", "CIS EKS 5.4.3", types=[SUBNET])
def subnet_without_public_addresses(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No subnet gives its machines public addresses."""
    if resource.at("mapPublicIpOnLaunch", default=False):
        yield "mapPublicIpOnLaunch is true; it must be false"
    if resource.at("assignIpv6AddressOnCreation", default=False):
        yield "assignIpv6AddressOnCreation is true, and IPv6 addresses are public; it must be false"


@RULES.rule("nodes-in-private-subnets", "CIS EKS 5.4.3", types=IN_SUBNETS, whole_stack=True)
def nodes_in_private_subnets(resource: Resource, stack: Stack) -> Iterator[str]:
    """Machines and file systems lie in subnets without a route to an internet gateway."""
    name = IN_SUBNETS[resource.type]
    for subnet in stack.sources(resource, name, SUBNET):
        for table in _tables(subnet, stack):
            for route in _public_routes(table, stack):
                yield (
                    f"{name} names {subnet.name}, whose route {route.name} goes to an internet gateway;"
                    " it must name subnets behind NAT or endpoints"
                )


@RULES.rule("private-subnets-reach-aws", "CIS EKS 5.4.3", types=[NODE_GROUP, NODE_CLASS], whole_stack=True)
def private_subnets_reach_aws(resource: Resource, stack: Stack) -> Iterator[str]:
    """The subnets of nodes have a NAT route, or their VPC has the endpoints that nodes need."""
    name = IN_SUBNETS[resource.type]
    for subnet in stack.sources(resource, name, SUBNET):
        if any(
            route.has("natGatewayId") for table in _tables(subnet, stack) for route in _routes(table, stack)
        ):
            continue
        for vpc in stack.sources(subnet, "vpcId", VPC):
            services = {
                str(each.at("serviceName", default=""))
                for each in stack.pointing(vpc, ENDPOINT, "vpcId")
                if each.at("vpcEndpointType") == "Interface"
            }
            missing = [
                short for short in NEEDED_ENDPOINTS if not any(s.endswith(f".{short}") for s in services)
            ]
            if missing:
                yield (
                    f"{name} names {subnet.name}, which has no NAT route, in a VPC without interface endpoints for"
                    f" {', '.join(missing)}; it must have either"
                )


@RULES.rule("vpc-has-s3-gateway", "CIS EKS 5.4.3", types=[VPC], whole_stack=True)
def vpc_has_s3_gateway(resource: Resource, stack: Stack) -> Iterator[str]:
    """A VPC reaches S3 by a gateway endpoint, so that data does not cross NAT."""
    endpoints = stack.pointing(resource, ENDPOINT, "vpcId")
    if not any(
        str(each.at("serviceName", default="")).endswith(".s3")
        and each.at("vpcEndpointType", default="Gateway") == "Gateway"
        for each in endpoints
    ):
        yield "no VpcEndpoint of type Gateway serves S3 in it; there must be one"


@RULES.rule("vpc-traffic-recorded", "CKV2_AWS_11", "AVD-AWS-0178", types=[VPC], whole_stack=True)
def vpc_traffic_recorded(resource: Resource, stack: Stack) -> Iterator[str]:
    """A VPC has a flow log of all its traffic, kept in an encrypted log group."""
    logs = stack.pointing(resource, FLOW_LOG, "vpcId")
    if not logs:
        yield "no FlowLog records its traffic; there must be one with trafficType ALL"
    for log in logs:
        kind = log.at("trafficType", default="ALL")
        if kind != "ALL":
            yield f"trafficType of FlowLog {log.name} is {kind}; it must be ALL"
        for group in stack.sources(log, "logDestination", LOG_GROUP):
            if not group.has("kmsKeyId"):
                yield f"FlowLog {log.name} writes to {group.name}, which has no kmsKeyId; it must name a key"


@RULES.rule(
    "default-group-closed", "CKV2_AWS_12", "AVD-AWS-0173", types=[VPC, DEFAULT_GROUP], whole_stack=True
)
def default_group_closed(resource: Resource, stack: Stack) -> Iterator[str]:
    """The default security group of a VPC has no rules, that of a given VPC neither."""
    if resource.type == DEFAULT_GROUP:
        for name in ("ingress", "egress"):
            if resource.at(name):
                yield f"{name} is not empty; it must have no rules"
    elif not stack.pointing(resource, DEFAULT_GROUP, "vpcId"):
        yield "no DefaultSecurityGroup takes the rules from its default group; there must be one without rules"


@RULES.rule("route-table-without-inline-routes", "CIS EKS 5.4.3", types=[ROUTE_TABLE])
def route_table_without_inline_routes(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Route tables have their routes as resources, which other rules follow and with which inline ones fight."""
    if resource.has("routes") and resource.properties["routes"] != []:
        yield "routes are inline; they must be Route resources"


@RULES.rule("log-group-encrypted", "CKV_AWS_158", "AVD-AWS-0017", "CIS EKS 2.1.1", types=[LOG_GROUP])
def log_group_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Log groups are encrypted with a key of ours."""
    if not resource.has("kmsKeyId"):
        yield "kmsKeyId is missing; it must name a KMS key"


@RULES.rule("log-group-retention", "CKV_AWS_66", "CKV_AWS_338", "CIS EKS 2.1.2", types=[LOG_GROUP])
def log_group_retention(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Log groups keep their entries for a year at least, and not for ever."""
    days = resource.at("retentionInDays", default=0)
    if days < LEAST_RETENTION_DAYS:
        yield f"retentionInDays is {days or 'missing'}; it must be at least {LEAST_RETENTION_DAYS}"


def _tables(subnet: Resource, stack: Stack) -> list[Resource]:
    return [
        table
        for association in stack.pointing(subnet, TABLE_OF_SUBNET, "subnetId")
        for table in stack.sources(association, "routeTableId", ROUTE_TABLE)
    ]


def _routes(table: Resource, stack: Stack) -> list[Resource]:
    return stack.pointing(table, ROUTE, "routeTableId")


def _public_routes(table: Resource, stack: Stack) -> Iterator[Resource]:
    for route in _routes(table, stack):
        value = route.properties.get("gatewayId")
        given = isinstance(value, str) and value.startswith("igw-")
        if given or stack.sources(route, "gatewayId", GATEWAY):
            yield route
