"""Reading the network of an account: EC2's answers, in the form that the checks need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainyard.preflight.account import Account, by_tags, has, tags_of
from trainyard.preflight.filters import Acl, Entry
from trainyard.preflight.groups import DISCOVERY, Group, Rule
from trainyard.preflight.identity import Zone
from trainyard.preflight.network import Endpoint, Nat, Route, Routing, Subnet, Vpc, subnet_keys
from trainyard.preflight.wanted import Wanted, WantedVpc

# One /28 prefix of an interface is sixteen addresses.
PREFIX_ADDRESSES = 16
# Where a route leads, the most telling first: a route to an instance names its interface, too.
TARGETS = (
    "NatGatewayId",
    "TransitGatewayId",
    "NetworkInterfaceId",
    "VpcPeeringConnectionId",
    "LocalGatewayId",
    "CarrierGatewayId",
    "CoreNetworkArn",
    "GatewayId",
)


def zones(account: Account) -> list[Zone]:
    """The availability zones of the region as the account sees them."""
    found = account.items(
        "ec2",
        "describe_availability_zones",
        "AvailabilityZones",
        Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}],
    )
    return [Zone(name=z["ZoneName"], zone_id=z.get("ZoneId", ""), state=z["State"]) for z in found]


def vpc(account: Account, vpc_id: str) -> Vpc | None:
    """A VPC with its DNS flags; None where there is none."""
    found = account.items("ec2", "describe_vpcs", "Vpcs", Filters=[{"Name": "vpc-id", "Values": [vpc_id]}])
    if not found:
        return None
    return Vpc(
        vpc_id=vpc_id,
        cidrs=_ranges(found[0]),
        dns_support=_flag(account, vpc_id, "enableDnsSupport"),
        dns_hostnames=_flag(account, vpc_id, "enableDnsHostnames"),
        dhcp_options=found[0].get("DhcpOptionsId") or "",
        tags=tags_of(found[0]),
    )


def _ranges(vpc: dict[str, Any]) -> tuple[str, ...]:
    sets = vpc.get("CidrBlockAssociationSet") or [{"CidrBlock": vpc["CidrBlock"]}]
    return tuple(
        each["CidrBlock"]
        for each in sets
        if each.get("CidrBlockState", {}).get("State", "associated") == "associated"
    )


def _flag(account: Account, vpc_id: str, name: str) -> bool:
    answer = account.call("ec2", "describe_vpc_attribute", VpcId=vpc_id, Attribute=name) or {}
    return bool(answer.get(name[0].upper() + name[1:], {}).get("Value"))


def subnets(account: Account, wanted: WantedVpc) -> dict[str, Subnet]:
    """Those of the given subnets that exist, by id."""
    ids = sorted({subnet_id for _, _, subnet_id in subnet_keys(wanted)})
    found = account.items(
        "ec2", "describe_subnets", "Subnets", Filters=[{"Name": "subnet-id", "Values": ids}]
    )
    return {
        s["SubnetId"]: Subnet(
            subnet_id=s["SubnetId"],
            vpc_id=s["VpcId"],
            zone=s["AvailabilityZone"],
            free=int(s["AvailableIpAddressCount"]),
            cidr=s["CidrBlock"],
            tags=tags_of(s),
        )
        for s in found
    }


def own_addresses(account: Account, wanted: Wanted) -> dict[str, int]:
    """Addresses per subnet that this very stack's machines have: by its tags, or by the CNI's for its cluster."""
    assert wanted.vpc is not None  # noqa: S101 - for the type checker
    found = account.items(
        "ec2",
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": "subnet-id", "Values": sorted(wanted.vpc.private.values())}],
    )
    result: dict[str, int] = {}
    for interface in found:
        tags = tags_of(interface, key="TagSet")
        if has(tags, wanted.tags) or tags.get("cluster.k8s.amazonaws.com/name") == wanted.cluster:
            count = len(interface.get("PrivateIpAddresses") or [])
            count += PREFIX_ADDRESSES * len(interface.get("Ipv4Prefixes") or [])
            result[interface["SubnetId"]] = result.get(interface["SubnetId"], 0) + count
    return result


def routing(account: Account, wanted: WantedVpc) -> Routing:
    """Route tables of the given subnets (their own, else the VPC's main one), NAT gateways and endpoints."""
    in_vpc = [{"Name": "vpc-id", "Values": [wanted.vpc_id]}]
    tables = account.items("ec2", "describe_route_tables", "RouteTables", Filters=in_vpc)
    gateways = account.items("ec2", "describe_nat_gateways", "NatGateways", Filters=in_vpc)
    nats = {
        gateway["NatGatewayId"]: Nat(
            state=gateway["State"],
            public=(gateway.get("ConnectivityType") or "public") == "public",
            subnet_id=gateway.get("SubnetId"),
        )
        for gateway in gateways
    }
    subnet_ids = {subnet_id for _, _, subnet_id in subnet_keys(wanted)}
    return Routing(
        tables=_tables(tables, subnet_ids | {nat.subnet_id for nat in nats.values() if nat.subnet_id}),
        nats=nats,
        endpoints=tuple(endpoints(account, wanted.vpc_id)),
    )


def endpoints(account: Account, vpc_id: str) -> list[Endpoint]:
    """The endpoints of a VPC."""
    found = account.items(
        "ec2",
        "describe_vpc_endpoints",
        "VpcEndpoints",
        Filters=[{"Name": "vpc-id", "Values": [vpc_id]}],
    )
    return [
        Endpoint(
            endpoint_id=e["VpcEndpointId"],
            service=e["ServiceName"],
            kind=e["VpcEndpointType"],
            state=e["State"],
            private_dns=bool(e.get("PrivateDnsEnabled")),
            subnets=frozenset(e.get("SubnetIds") or []),
            route_tables=frozenset(e.get("RouteTableIds") or []),
            groups=frozenset(group["GroupId"] for group in e.get("Groups") or []),
            tags=tags_of(e),
        )
        for e in found
    ]


def acls(account: Account, wanted: WantedVpc) -> dict[str, Acl]:
    """The network ACL of each given subnet."""
    ids = sorted({subnet_id for _, _, subnet_id in subnet_keys(wanted)})
    found = account.items(
        "ec2",
        "describe_network_acls",
        "NetworkAcls",
        Filters=[{"Name": "association.subnet-id", "Values": ids}],
    )
    return {
        association["SubnetId"]: Acl(
            acl_id=each["NetworkAclId"],
            entries=tuple(_entry(entry) for entry in each.get("Entries") or []),
        )
        for each in found
        for association in each.get("Associations") or []
    }


def _entry(entry: dict[str, Any]) -> Entry:
    return Entry(
        number=int(entry["RuleNumber"]),
        egress=bool(entry["Egress"]),
        allow=entry["RuleAction"] == "allow",
        protocol=str(entry["Protocol"]),
        block=entry.get("CidrBlock") or entry.get("Ipv6CidrBlock") or "",
    )


def dns_servers(account: Account, vpc: Vpc) -> list[str]:
    """The DNS servers that a VPC's DHCP options name; none where it has no options."""
    found = account.items(
        "ec2",
        "describe_dhcp_options",
        "DhcpOptions",
        Filters=[{"Name": "dhcp-options-id", "Values": [vpc.dhcp_options]}],
    )
    return [
        str(value["Value"])
        for each in found
        for option in each.get("DhcpConfigurations") or []
        if option["Key"] == "domain-name-servers"
        for value in option.get("Values") or []
    ]


def _tables(
    tables: list[dict[str, Any]], subnet_ids: Iterable[str]
) -> dict[str, tuple[str, tuple[Route, ...]]]:
    main: tuple[str, tuple[Route, ...]] = ("", ())
    own: dict[str, tuple[str, tuple[Route, ...]]] = {}
    for table in tables:
        shown = (table["RouteTableId"], tuple(_route(route) for route in table.get("Routes") or []))
        for association in table.get("Associations") or []:
            if association.get("Main"):
                main = shown
            if association.get("SubnetId"):
                own[association["SubnetId"]] = shown
    return {subnet_id: own.get(subnet_id, main) for subnet_id in subnet_ids}


def _route(route: dict[str, Any]) -> Route:
    destination = route.get("DestinationCidrBlock") or route.get("DestinationPrefixListId") or ""
    target = next((route[key] for key in TARGETS if route.get(key)), "")
    return Route(destination=destination, target=target, state=route.get("State") or "active")


def group(account: Account, group_id: str) -> Group | None:
    """A security group; None where there is none."""
    found = _groups(account, [{"Name": "group-id", "Values": [group_id]}])
    return found[0] if found else None


def groups(account: Account, group_ids: list[str]) -> list[Group]:
    """Those of the security groups that exist."""
    return _groups(account, [{"Name": "group-id", "Values": group_ids}]) if group_ids else []


def discovered(account: Account, wanted: Wanted) -> list[Group]:
    """The groups with Karpenter's discovery tag for this cluster, in the given VPC or not."""
    return _groups(account, by_tags({DISCOVERY: wanted.cluster}))


def _groups(account: Account, filters: list[dict[str, Any]]) -> list[Group]:
    return [
        Group(
            group_id=g["GroupId"],
            vpc_id=g.get("VpcId", ""),
            ingress=tuple(_rule(r) for r in g.get("IpPermissions") or []),
            egress=tuple(_rule(r) for r in g.get("IpPermissionsEgress") or []),
            tags=tags_of(g),
        )
        for g in account.items("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
    ]


def _rule(rule: dict[str, Any]) -> Rule:
    return Rule(
        protocol=str(rule["IpProtocol"]),
        first=int(rule.get("FromPort", 0)),
        last=int(rule.get("ToPort", 65535)),
        groups=frozenset(
            pair["GroupId"] for pair in rule.get("UserIdGroupPairs") or [] if pair.get("GroupId")
        ),
        ranges=frozenset(
            (
                *(each["CidrIp"] for each in rule.get("IpRanges") or []),
                *(each["CidrIpv6"] for each in rule.get("Ipv6Ranges") or []),
            )
        ),
        lists=frozenset(each["PrefixListId"] for each in rule.get("PrefixListIds") or []),
    )
