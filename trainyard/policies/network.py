"""Rules for the network: private subnets and security groups."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from components.documents.vpc import WIDEST_PUBLIC_PREFIX
from trainyard.policies.model import Resource, Stack, rule

SUBNET: Final = "aws:ec2/subnet:Subnet"
ROUTE: Final = "aws:ec2/route:Route"
ROUTE_TABLE: Final = "aws:ec2/routeTable:RouteTable"
TABLE_ASSOCIATION: Final = "aws:ec2/routeTableAssociation:RouteTableAssociation"
INTERNET_GATEWAY: Final = "aws:ec2/internetGateway:InternetGateway"
NODE_GROUP: Final = "aws:eks/nodeGroup:NodeGroup"
NODE_CLASS: Final = "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"
LUSTRE: Final = "aws:fsx/lustreFileSystem:LustreFileSystem"
# What has nodes or data in subnets, and the property that names the subnets.
IN_SUBNETS: Final = {NODE_GROUP: "subnetIds", NODE_CLASS: "spec", LUSTRE: "subnetIds"}

GROUP: Final = "aws:ec2/securityGroup:SecurityGroup"
INGRESS: Final = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS: Final = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
# A range with a shorter prefix can't be one organisation's. The largest private range is 10.0.0.0/8. A VPC has at most
# a /44 of IPv6 (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html).
SHORTEST_PREFIX: Final = {4: WIDEST_PUBLIC_PREFIX, 6: 32}
# RFC 1918, RFC 6598 and loopback.
PRIVATE: Final = tuple(
    ipaddress.IPv4Network(block)
    for block in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
# SSH and remote desktop.
SHELL_PORTS: Final = (22, 3389)
ALL_PROTOCOLS: Final = ("-1", "all")
TCP: Final = ("tcp", "6")
WITH_PORTS: Final = (*TCP, "udp", "17")
# Any other protocol has no ports and most carry others, such as ESP, GRE and IP in IP
# (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpPermission.html).
ICMP: Final = ("icmp", "1", "icmpv6", "58")
# A rule with more ports than this counts as all ports.
MAXIMUM_PORTS: Final = 32768


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a security group rule allows.

    Attributes:
        ranges: CIDR blocks and prefix lists.
        is_own_group: The peer is the rule's own group.
    """

    protocol: str
    first: int
    last: int
    ranges: tuple[str, ...]
    is_own_group: bool

    @property
    def is_unrestricted(self) -> bool:
        """Whether it allows every protocol, nearly all ports, or a protocol without ports."""
        if self.protocol in WITH_PORTS:
            return self.last - self.first + 1 > MAXIMUM_PORTS
        return self.protocol not in ICMP

    def passes(self, port: int) -> bool:
        """Return whether it allows TCP to a port."""
        return self.protocol in ALL_PROTOCOLS or (self.protocol in TCP and self.first <= port <= self.last)

    def __str__(self) -> str:
        if self.protocol in ALL_PROTOCOLS:
            return "every protocol"
        return self.protocol + (f" {self.first} to {self.last}" if self.protocol in WITH_PORTS else "")


def is_public(block: str) -> bool:
    """Return whether a CIDR block is the internet, or too large for one organisation."""
    try:
        network = ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False  # a prefix list
    if isinstance(network, ipaddress.IPv4Network) and any(network.subnet_of(each) for each in PRIVATE):
        return False
    return network.prefixlen < SHORTEST_PREFIX[network.version]


def traffic(resource: Resource) -> Traffic:
    """Return what a security group rule allows.

    Raises:
        Undecided: addresses or ports are unknown.
    """
    ranges = (resource.at(name) for name in ("cidrIpv4", "cidrIpv6", "prefixListId"))
    return Traffic(
        protocol=str(resource.at("ipProtocol", default="-1")).lower(),
        first=int(resource.at("fromPort", default=0)),
        last=int(resource.at("toPort", default=65535)),
        ranges=tuple(str(each) for each in ranges if each),
        is_own_group=_is_same(resource, "securityGroupId", "referencedSecurityGroupId"),
    )


def _is_same(resource: Resource, one: str, other: str) -> bool:
    """Return whether two properties are the same group, by their references or else by their values."""
    left, right = resource.refers(one), resource.refers(other)
    if left or right:
        return left == right
    return resource.at(one) is not None and resource.at(one) == resource.at(other)


@rule("private-subnets", *IN_SUBNETS, why="checkov does not follow the routes of a subnet")
def private_subnets(resource: Resource, stack: Stack) -> Iterator[str]:
    """Nodes and file systems are in subnets without a route to an internet gateway."""
    name = IN_SUBNETS[resource.type]
    for subnet in stack.sources(resource, name, SUBNET):
        for association in stack.pointing(subnet, TABLE_ASSOCIATION, "subnetId"):
            for table in stack.sources(association, "routeTableId", ROUTE_TABLE):
                for route in stack.pointing(table, ROUTE, "routeTableId"):
                    if stack.sources(route, "gatewayId", INTERNET_GATEWAY):
                        yield (
                            f"{name} has subnet {subnet.name}, whose route {route.name} goes to an internet gateway;"
                            " it must have subnets behind NAT or endpoints"
                        )


@rule(
    "ingress-restricted",
    INGRESS,
    why="checkov refuses 0.0.0.0/0 for ports 22, 80, 3389 and all, nothing else",
)
def ingress_restricted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Inbound traffic is from known ranges and groups, never to SSH, and unrestricted only within a group (EFA)."""
    found = traffic(resource)
    for block in found.ranges:
        if is_public(block):
            yield f"it allows {block}; it must name a range of one organisation, or a security group"
        elif block.startswith("pl-"):
            yield f"it allows prefix list {block}, whose ranges can change; it must name ranges, or a security group"
    if found.is_unrestricted:
        if not found.is_own_group:
            yield f"it allows {found} from elsewhere; it must name its own group, or protocol and ports"
        return
    for port in filter(found.passes, SHELL_PORTS):
        yield f"it allows port {port}; nodes have no remote shell, so it must leave the port out"


@rule("egress-restricted", EGRESS, why="CKV_AWS_382 does not read rules that are resources")
def egress_restricted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The stack's rules for outbound traffic to the internet name protocol and ports."""
    found = traffic(resource)
    if found.is_unrestricted and any(map(is_public, found.ranges)):
        yield f"it allows {found} to everywhere; it must name protocol and ports, such as tcp 443"
