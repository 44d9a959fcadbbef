"""What the rules of the VPC and of its security groups must reject and accept."""

from __future__ import annotations

from typing import Any

from tests.unit.policies.building import Case, Cases, made
from trainyard.policies import network as n
from trainyard.policies import security_groups as g
from trainyard.policies.model import UNKNOWN, Resource

VPC = made(n.VPC, "vpc")
SUBNET = made(n.SUBNET, "subnet", of={"vpcId": VPC})
TABLE = made(n.ROUTE_TABLE, "table")
IN_TABLE = made(n.TABLE_OF_SUBNET, "in", of={"subnetId": SUBNET, "routeTableId": TABLE})
GATEWAY = made(n.GATEWAY, "internet")
TO_INTERNET = made(n.ROUTE, "out", of={"routeTableId": TABLE, "gatewayId": GATEWAY}, gatewayId="igw-1")
GIVEN_GATEWAY = made(n.ROUTE, "out", of={"routeTableId": TABLE}, gatewayId="igw-0a1b")
TO_NAT = made(n.ROUTE, "nat", of={"routeTableId": TABLE}, natGatewayId="nat-1")
NODES = made(n.NODE_GROUP, "nodes", of={"subnetIds": SUBNET}, subnetIds=["subnet-1"])
WORKERS = made(n.NODE_CLASS, "workers", of={"spec": SUBNET}, spec={})
FILES = made(n.LUSTRE, "files", of={"subnetIds": SUBNET}, subnetIds=["subnet-1"])
S3 = made(
    n.ENDPOINT, "s3", of={"vpcId": VPC}, serviceName="com.amazonaws.us-west-2.s3", vpcEndpointType="Gateway"
)
GROUP = made(g.GROUP, "group")
OTHER = made(g.GROUP, "other")
ENCRYPTED_LOGS = made(n.LOG_GROUP, "logs", kmsKeyId="key", retentionInDays=365)
PLAIN_LOGS = made(n.LOG_GROUP, "logs", retentionInDays=365)


def endpoint(short: str) -> Resource:
    name = f"com.amazonaws.us-west-2.{short}"
    return made(n.ENDPOINT, short, of={"vpcId": VPC}, serviceName=name, vpcEndpointType="Interface")


ENDPOINTS = [endpoint(short) for short in n.NEEDED_ENDPOINTS]


def flow_log(group: Resource, **more: Any) -> Resource:
    properties = {"trafficType": "ALL", "logDestination": "arn", **more}
    return made(n.FLOW_LOG, "flow", of={"vpcId": VPC, "logDestination": group}, **properties)


def ingress(source: Resource | None = None, **more: Any) -> Case:
    """A rule resource of `GROUP`, by default from elsewhere on one port."""
    of = {"securityGroupId": GROUP, **({"referencedSecurityGroupId": source} if source else {})}
    named = {"referencedSecurityGroupId": "sg"} if source else {}
    properties = {"ipProtocol": "tcp", "fromPort": 443, "toPort": 443, "description": "d", **named, **more}
    return made(g.INGRESS, "in", of=of, **properties)


def egress(**more: Any) -> Case:
    return made(
        g.EGRESS, "out", of={"securityGroupId": GROUP}, **{"ipProtocol": "-1", "description": "d", **more}
    )


def old(kind: str, **more: Any) -> Case:
    """The older form of a rule, which pulumi-eks makes."""
    properties = {"type": kind, "protocol": "tcp", "fromPort": 443, "toPort": 443, "description": "d", **more}
    return made(g.RULE, "rule", of={"securityGroupId": GROUP}, **properties)


CASES: dict[str, Cases] = {
    "subnet-without-public-addresses": Cases(
        rejects=[
            made(n.SUBNET, mapPublicIpOnLaunch=True),
            made(n.SUBNET, assignIpv6AddressOnCreation=True),
        ],
        accepts=[made(n.SUBNET), made(n.SUBNET, mapPublicIpOnLaunch=False)],
    ),
    "nodes-in-private-subnets": Cases(
        rejects=[
            (NODES, SUBNET, TABLE, IN_TABLE, TO_INTERNET, GATEWAY),
            (WORKERS, SUBNET, TABLE, IN_TABLE, TO_INTERNET, GATEWAY),
            (FILES, SUBNET, TABLE, IN_TABLE, GIVEN_GATEWAY),
        ],
        accepts=[(NODES, SUBNET, TABLE, IN_TABLE, TO_NAT), (WORKERS,)],
    ),
    "private-subnets-reach-aws": Cases(
        rejects=[
            (NODES, SUBNET, VPC, TABLE, IN_TABLE),
            (WORKERS, SUBNET, VPC, TABLE, IN_TABLE, *ENDPOINTS[1:]),
        ],
        accepts=[
            (NODES, SUBNET, VPC, TABLE, IN_TABLE, TO_NAT),
            (WORKERS, SUBNET, VPC, TABLE, IN_TABLE, *ENDPOINTS),
        ],
    ),
    "vpc-has-s3-gateway": Cases(
        rejects=[(VPC,), (VPC, endpoint("s3"))],
        accepts=[(VPC, S3)],
    ),
    "vpc-traffic-recorded": Cases(
        rejects=[
            (VPC, made(n.FLOW_LOG, "elsewhere", of={"vpcId": made(n.VPC, "another")})),
            (VPC, flow_log(ENCRYPTED_LOGS, trafficType="REJECT"), ENCRYPTED_LOGS),
            (VPC, flow_log(PLAIN_LOGS), PLAIN_LOGS),
        ],
        accepts=[(VPC, flow_log(ENCRYPTED_LOGS), ENCRYPTED_LOGS)],
    ),
    "default-group-closed": Cases(
        rejects=[
            (VPC,),
            made(n.DEFAULT_GROUP, vpcId="vpc-1", ingress=[{"protocol": "-1"}]),
            made(n.DEFAULT_GROUP, vpcId="vpc-1", egress=[{"protocol": "-1"}]),
        ],
        accepts=[(VPC, made(n.DEFAULT_GROUP, of={"vpcId": VPC})), made(n.DEFAULT_GROUP, ingress=[])],
    ),
    "route-table-without-inline-routes": Cases(
        rejects=[
            made(n.ROUTE_TABLE, routes=[{"cidrBlock": "0.0.0.0/0", "gatewayId": "igw-1"}]),
            made(n.ROUTE_TABLE, routes=UNKNOWN),
        ],
        accepts=[made(n.ROUTE_TABLE), made(n.ROUTE_TABLE, routes=[])],
    ),
    "log-group-encrypted": Cases(rejects=[PLAIN_LOGS], accepts=[ENCRYPTED_LOGS]),
    "log-group-retention": Cases(
        rejects=[made(n.LOG_GROUP), made(n.LOG_GROUP, retentionInDays=364)], accepts=[PLAIN_LOGS]
    ),
    "group-described": Cases(
        rejects=[made(g.GROUP), ingress(description=""), made(g.RULE, type="ingress")],
        accepts=[made(g.GROUP, description="Workers"), ingress()],
    ),
    "group-without-inline-rules": Cases(
        rejects=[
            made(g.GROUP, ingress=[{"protocol": "tcp"}]),
            made(g.GROUP, egress=[{"protocol": "-1"}]),
        ],
        accepts=[made(g.GROUP)],
    ),
    "ingress-not-from-anywhere": Cases(
        rejects=[
            ingress(cidrIpv4="0.0.0.0/0"),
            ingress(cidrIpv6="::/0"),
            ingress(cidrIpv4="0.0.0.0/1"),
            ingress(cidrIpv4="128.0.0.0/7"),
            ingress(cidrIpv4="3.0.0.0/8"),
            ingress(cidrIpv4="52.0.0.0/15"),
            ingress(cidrIpv4="172.0.0.0/8"),
            ingress(prefixListId="pl-0a1b"),
            old("ingress", prefixListIds=["pl-0a1b"]),
            ingress(cidrIpv6="2000::/3"),
            old("ingress", cidrBlocks=["10.0.0.0/8", "0.0.0.0/0"]),
            old("ingress", ipv6CidrBlocks=["::/0"]),
        ],
        accepts=[
            ingress(cidrIpv4="10.0.0.0/8"),
            ingress(cidrIpv6="2001:db8::/32"),
            ingress(cidrIpv4="100.64.0.0/10"),
            ingress(cidrIpv4="203.0.113.0/24"),
            old("egress", prefixListIds=["pl-0a1b"]),
            old("egress", cidrBlocks=["0.0.0.0/0"]),
            ingress(OTHER),
        ],
    ),
    "ingress-no-remote-shell": Cases(
        rejects=[
            ingress(cidrIpv4="10.0.0.0/8", fromPort=22, toPort=22),
            ingress(cidrIpv4="10.0.0.0/8", fromPort=0, toPort=65535),
            ingress(OTHER, fromPort=3389, toPort=3389),
            ingress(OTHER, fromPort=20, toPort=25, ipProtocol="TCP"),
            ingress(GROUP, fromPort=22, toPort=22),
            old("ingress", cidrBlocks=["10.0.0.0/8"], protocol="-1", fromPort=0, toPort=0),
        ],
        accepts=[
            ingress(cidrIpv4="10.0.0.0/8"),
            ingress(OTHER, fromPort=1025, toPort=3388),
            ingress(GROUP, ipProtocol="-1"),
            ingress(GROUP, fromPort=0, toPort=65535),
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="udp", fromPort=22, toPort=22),
        ],
    ),
    "all-traffic-among-members-only": Cases(
        rejects=[
            ingress(OTHER, ipProtocol="-1"),
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="-1"),
            ingress(OTHER, fromPort=0, toPort=65535),
            ingress(OTHER, fromPort=1025, toPort=65535),
            ingress(OTHER, ipProtocol="17", fromPort=1, toPort=65534),
            old("ingress", protocol="-1", sourceSecurityGroupId="sg-2"),
            # ESP, GRE and IP in IP carry any protocol, and have no ports.
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="50", fromPort=None, toPort=None),
            ingress(cidrIpv4="172.16.0.0/12", ipProtocol="esp", fromPort=None, toPort=None),
            ingress(OTHER, ipProtocol="47", fromPort=None, toPort=None),
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="all"),
            old("ingress", protocol="4", cidrBlocks=["192.168.0.0/16"], fromPort=0, toPort=0),
        ],
        accepts=[
            ingress(GROUP, ipProtocol="-1"),
            ingress(GROUP, fromPort=0, toPort=65535),
            ingress(OTHER, ipProtocol="icmp", fromPort=-1, toPort=65535),
            ingress(cidrIpv4="10.0.0.0/8", ipProtocol="58", fromPort=-1, toPort=-1),
            ingress(GROUP, ipProtocol="50", fromPort=None, toPort=None),
            ingress(cidrIpv4="10.0.0.0/8"),
            old("ingress", protocol="-1", self=True),
            made(g.INGRESS, ipProtocol="-1", securityGroupId="sg-1", referencedSecurityGroupId="sg-1"),
            ingress(OTHER),
        ],
    ),
    "egress-listed": Cases(
        rejects=[
            egress(cidrIpv4="0.0.0.0/0"),
            egress(cidrIpv4="0.0.0.0/1"),
            egress(cidrIpv6="::/0", ipProtocol="udp", fromPort=0, toPort=65535),
            egress(cidrIpv4="0.0.0.0/0", ipProtocol="tcp", fromPort=0, toPort=65535),
            old("egress", protocol="-1", cidrBlocks=["0.0.0.0/0"]),
            egress(cidrIpv4="0.0.0.0/0", ipProtocol="47"),
        ],
        accepts=[
            egress(cidrIpv4="0.0.0.0/0", ipProtocol="tcp", fromPort=443, toPort=443),
            egress(cidrIpv4="10.0.0.0/8"),
            egress(),
        ],
    ),
}
