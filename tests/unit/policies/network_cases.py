"""Fixtures of the rules for private subnets and security groups."""

from __future__ import annotations

from typing import Any

from tests.unit.policies.building import Case, Cases, made
from trainyard.policies import network as n
from trainyard.policies.model import Resource

SUBNET = made(n.SUBNET, "subnet")
TABLE = made(n.ROUTE_TABLE, "table")
IN_TABLE = made(n.TABLE_ASSOCIATION, "in", of={"subnetId": SUBNET, "routeTableId": TABLE})
GATEWAY = made(n.INTERNET_GATEWAY, "internet")
TO_INTERNET = made(n.ROUTE, "out", of={"routeTableId": TABLE, "gatewayId": GATEWAY}, gatewayId="igw-1")
TO_NAT = made(n.ROUTE, "nat", of={"routeTableId": TABLE}, natGatewayId="nat-1")
NODES = made(n.NODE_GROUP, "nodes", of={"subnetIds": SUBNET}, subnetIds=["subnet-1"])
WORKERS = made(n.NODE_CLASS, "workers", of={"spec": SUBNET}, spec={})
FILES = made(n.LUSTRE, "files", of={"subnetIds": SUBNET}, subnetIds=["subnet-1"])
GROUP = made(n.GROUP, "group")
OTHER = made(n.GROUP, "other")


def ingress(source: Resource | None = None, **more: Any) -> Case:
    """A rule resource of `GROUP`, by default from elsewhere on one port."""
    of = {"securityGroupId": GROUP, **({"referencedSecurityGroupId": source} if source else {})}
    named = {"referencedSecurityGroupId": "sg"} if source else {}
    properties = {"ipProtocol": "tcp", "fromPort": 443, "toPort": 443, "description": "d", **named, **more}
    return made(n.INGRESS, "in", of=of, **properties)


def egress(**more: Any) -> Case:
    return made(
        n.EGRESS, "out", of={"securityGroupId": GROUP}, **{"ipProtocol": "-1", "description": "d", **more}
    )


CASES: dict[str, Cases] = {
    "private-subnets": Cases(
        rejects=[
            (NODES, SUBNET, TABLE, IN_TABLE, TO_INTERNET, GATEWAY),
            (WORKERS, SUBNET, TABLE, IN_TABLE, TO_INTERNET, GATEWAY),
            (FILES, SUBNET, TABLE, IN_TABLE, TO_INTERNET, GATEWAY),
        ],
        accepts=[(NODES, SUBNET, TABLE, IN_TABLE, TO_NAT), (WORKERS,)],
    ),
    "ingress-restricted": Cases(
        rejects=[
            *(
                ingress(cidrIpv4=block)
                for block in (
                    "0.0.0.0/0",
                    "0.0.0.0/1",
                    "128.0.0.0/7",
                    "3.0.0.0/8",
                    "52.0.0.0/15",
                    "172.0.0.0/8",
                )
            ),
            ingress(cidrIpv6="::/0"),
            ingress(cidrIpv6="2000::/3"),
            ingress(prefixListId="pl-0a1b"),
            ingress(cidrIpv4="10.0.0.0/8", fromPort=22, toPort=22),
            ingress(OTHER, fromPort=3389, toPort=3389),
            ingress(OTHER, fromPort=20, toPort=25, ipProtocol="TCP"),
            ingress(GROUP, fromPort=22, toPort=22),
            ingress(OTHER, ipProtocol="-1"),
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="all"),
            ingress(OTHER, fromPort=1025, toPort=65535),
            ingress(OTHER, ipProtocol="17", fromPort=1, toPort=65534),
            # ESP, GRE and IP in IP carry any protocol, and have no ports.
            ingress(cidrIpv4="172.16.0.0/12", ipProtocol="esp", fromPort=None, toPort=None),
            ingress(OTHER, ipProtocol="47", fromPort=None, toPort=None),
        ],
        accepts=[
            *(ingress(cidrIpv4=block) for block in ("10.0.0.0/8", "100.64.0.0/10", "203.0.113.0/24")),
            ingress(cidrIpv6="2001:db8::/32"),
            ingress(OTHER),
            ingress(OTHER, fromPort=1025, toPort=3388),
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="udp", fromPort=22, toPort=22),
            ingress(OTHER, ipProtocol="icmp", fromPort=-1, toPort=65535),
            # EFA needs all traffic within a group.
            ingress(GROUP, ipProtocol="-1"),
            ingress(GROUP, fromPort=0, toPort=65535),
            made(n.INGRESS, ipProtocol="-1", securityGroupId="sg-1", referencedSecurityGroupId="sg-1"),
        ],
    ),
    "egress-restricted": Cases(
        rejects=[
            egress(cidrIpv4="0.0.0.0/0"),
            egress(cidrIpv4="0.0.0.0/1"),
            egress(cidrIpv6="::/0", ipProtocol="udp", fromPort=0, toPort=65535),
            egress(cidrIpv4="0.0.0.0/0", ipProtocol="tcp", fromPort=0, toPort=65535),
            egress(cidrIpv4="0.0.0.0/0", ipProtocol="47"),
        ],
        accepts=[
            egress(cidrIpv4="0.0.0.0/0", ipProtocol="tcp", fromPort=443, toPort=443),
            egress(cidrIpv4="10.0.0.0/8"),
            egress(),
        ],
    ),
}
