"""Rules for security groups. The three forms in which the AWS provider has their rules are read as one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trainyard.policies.model import Resource, Rules, Stack, Undecided

RULES: Final = Rules()

GROUP: Final = "aws:ec2/securityGroup:SecurityGroup"
RULE: Final = "aws:ec2/securityGroupRule:SecurityGroupRule"
INGRESS: Final = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS: Final = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
OPENINGS: Final = (RULE, INGRESS, EGRESS)

# A shorter prefix is nobody's own range. Of private ranges 10.0.0.0/8 is the largest; of public ones a /16 is more than
# an office or a provider's gateway has, and a VPC has a /44 of IPv6 at most
# (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html).
LEAST_PREFIX: Final = {4: 16, 6: 32}
# RFC 1918, RFC 6598 and this machine itself.
PRIVATE: Final = tuple(
    ipaddress.IPv4Network(block)
    for block in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
PREFIX_LIST: Final = "pl-"
# Secure shell and remote desktop.
SHELL_PORTS: Final = (22, 3389)
ALL_PROTOCOLS: Final = ("-1", "all")
TCP: Final = ("tcp", "6")
WITH_PORTS: Final = (*TCP, "udp", "17")
# Messages about traffic. Any other protocol is let in whole, and most carry others: ESP, GRE, IP in IP
# (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpPermission.html).
ABOUT_TRAFFIC: Final = ("icmp", "1", "icmpv6", "58")
# More ports than this are as good as all.
MOST_PORTS: Final = 32768


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What one rule lets through. `ranges` are addresses; `same` says that it names its own group."""

    inward: bool
    protocol: str
    first: int
    last: int
    ranges: tuple[str, ...]
    group: bool
    same: bool

    @property
    def everything(self) -> bool:
        """Every protocol and port."""
        return self.protocol in ALL_PROTOCOLS

    @property
    def unlisted(self) -> bool:
        """Every protocol and port, as good as every port of one protocol, or a protocol that has no ports."""
        if self.protocol in WITH_PORTS:
            return self.last - self.first + 1 > MOST_PORTS
        return self.protocol not in ABOUT_TRAFFIC

    def passes(self, port: int) -> bool:
        """Whether TCP to this port gets through."""
        return self.everything or (self.protocol in TCP and self.first <= port <= self.last)


def anywhere(block: str) -> bool:
    """Whether a range (or the id of a prefix list, which is none) is the internet, or too much of it to be ours."""
    try:
        network = ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False
    if isinstance(network, ipaddress.IPv4Network) and any(network.subnet_of(each) for each in PRIVATE):
        return False
    return network.prefixlen < LEAST_PREFIX[network.version]


def opening(resource: Resource) -> Opening:
    """A rule resource as one form.

    Raises:
        Undecided: addresses, ports or the direction are not known.
    """
    if resource.type == RULE:
        lists = ("cidrBlocks", "ipv6CidrBlocks", "prefixListIds")
        ranges = [str(each) for name in lists for each in resource.known(name, default=[])]
        inward, protocol = resource.at("type") == "ingress", resource.at("protocol", default="-1")
        group, own = "sourceSecurityGroupId", bool(resource.at("self", default=False))
    else:
        names = ("cidrIpv4", "cidrIpv6", "prefixListId")
        ranges = [str(resource.at(name)) for name in names if resource.at(name)]
        inward, protocol = resource.type == INGRESS, resource.at("ipProtocol", default="-1")
        group, own = "referencedSecurityGroupId", False
    return Opening(
        inward=inward,
        protocol=str(protocol).lower(),
        first=int(resource.at("fromPort", default=0)),
        last=int(resource.at("toPort", default=65535)),
        ranges=tuple(ranges),
        group=resource.has(group),
        same=own or (resource.has(group) and _same(resource, "securityGroupId", group)),
    )


@RULES.rule("group-described", "CKV_AWS_23", "AVD-AWS-0099", "AVD-AWS-0124", types=[GROUP, *OPENINGS])
def group_described(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Security groups and their rules say what they are for."""
    if not resource.at("description"):
        yield "description is missing; it must say what it is for"


@RULES.rule("group-without-inline-rules", types=[GROUP])
def group_without_inline_rules(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Security groups have their rules as resources, with which inline rules fight (pulumi/pulumi-eks#1031)."""
    for name in ("ingress", "egress"):
        if resource.at(name):
            yield f"{name} has rules inline; they must be SecurityGroup{name.title()}Rule resources"


@RULES.rule("ingress-not-from-anywhere", "CKV_AWS_260", "CKV_AWS_277", "AVD-AWS-0107", types=OPENINGS)
def ingress_not_from_anywhere(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nothing comes in from the internet, nor from a part of it that is nobody's own."""
    found = opening(resource)
    for block in found.ranges if found.inward else ():
        if anywhere(block):
            yield f"lets {block} in; it must name a range of ours or a security group"
        elif block.startswith(PREFIX_LIST):
            yield f"lets the ranges of {block} in, which nobody sees here; it must name them, or a security group"


@RULES.rule("ingress-no-remote-shell", "CKV_AWS_24", "CKV_AWS_25", types=OPENINGS)
def ingress_no_remote_shell(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nothing reaches a shell's port but a group's own members, among whom all is open."""
    found = opening(resource)
    if not found.inward or (found.unlisted and not found.ranges):
        return  # all-traffic-among-members-only tells it
    for port in SHELL_PORTS:
        if found.passes(port):
            yield f"lets port {port} through; nodes are reached by no remote shell, so it must leave that out"


@RULES.rule("all-traffic-among-members-only", "CKV_AWS_277", types=OPENINGS)
def all_traffic_among_members_only(resource: Resource, _stack: Stack) -> Iterator[str]:
    """What lets every protocol, a tunnel or all ports in lets it in from its own group only, which is how EFA works."""
    found = opening(resource)
    if found.inward and found.unlisted and not found.same:
        yield f"lets {_what(found)} in from elsewhere; it must name its own group, or protocol and ports"


@RULES.rule("egress-listed", "CKV_AWS_382", types=OPENINGS)
def egress_listed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A way out to everywhere names its protocol and ports."""
    found = opening(resource)
    if not found.inward and found.unlisted and any(anywhere(block) for block in found.ranges):
        yield f"lets {_what(found)} out to everywhere; it must name protocol and ports, such as tcp 443"


def _what(found: Opening) -> str:
    if found.everything:
        return "every protocol"
    ports = f" {found.first} to {found.last}" if found.protocol in WITH_PORTS else ""
    return f"{found.protocol}{ports}"


def _same(resource: Resource, one: str, other: str) -> bool:
    """Whether two properties hold the same group; by where their values come from, or by the values."""
    left, right = resource.refers(one), resource.refers(other)
    if left and right:
        return left == right
    values: list[Any] = []
    for name in (one, other):
        try:
            values.append(resource.at(name))
        except Undecided:
            # One is given and the other is made: they can't be the same.
            values.append(None)
    return values[0] is not None and values[0] == values[1]


def rules_into(group: Resource, stack: Stack) -> list[Resource]:
    """The rule resources of a group that let something in."""
    made = stack.pointing(group, INGRESS, "securityGroupId")
    return [*made, *(each for each in stack.pointing(group, RULE, "securityGroupId") if opening(each).inward)]
