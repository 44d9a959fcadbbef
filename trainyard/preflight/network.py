"""Check an existing VPC: its DNS flags, subnets, free addresses, tags, network ACLs and DNS servers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final

from components.documents.vpc import service_name
from infra.settings import Settings
from infra.settings.rules import needed_addresses
from trainyard.preflight.aws import Aws, filter_by, has, tags_of
from trainyard.preflight.findings import WARNING, Finding, own_tags

KEY: Final = "trainyard:network"
# One /28 prefix of an interface is sixteen addresses.
PREFIX_ADDRESSES: Final = 16
ALL: Final = "-1"
ANYWHERE: Final = "0.0.0.0/0"
# Amazon's DNS servers: the name in DHCP options, and the address in every VPC. The third is the range's third address
# (https://docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html).
AMAZON_DNS: Final = ("AmazonProvidedDNS", "169.254.169.253")


def _vpc(settings: Settings, aws: Aws) -> dict[str, Any] | None:
    """Return the existing VPC; None if the stack creates one, or if it does not exist."""
    if settings.network.existing is None:
        return None
    by_id = [filter_by("vpc-id", settings.network.existing.vpc_id)]
    return next(iter(aws.items("ec2", "describe_vpcs", "Vpcs", Filters=by_id)), None)


def _cidrs(vpc: Mapping[str, Any]) -> list[str]:
    return [
        each["CidrBlock"]
        for each in vpc.get("CidrBlockAssociationSet") or [vpc]
        if each.get("CidrBlockState", {}).get("State", "associated") == "associated"
    ]


def subnet_keys(settings: Settings) -> list[tuple[str, str, str]]:
    """Return key, zone and id of each existing subnet, private ones first."""
    network = settings.network.existing
    if network is None:
        return []
    return [
        (f"{KEY}.{name}.{zone}", zone, identity)
        for name, subnets in (
            ("privateSubnetIds", network.private_subnet_ids),
            ("publicSubnetIds", network.public_subnet_ids),
        )
        for zone, identity in subnets.items()
    ]


def subnets(settings: Settings, aws: Aws) -> dict[str, dict[str, Any]]:
    """Return the subnets in the stack file that exist, by id."""
    ids = sorted({identity for _, _, identity in subnet_keys(settings)})
    by_id = [filter_by("subnet-id", *ids)]
    found = aws.items("ec2", "describe_subnets", "Subnets", Filters=by_id) if ids else []
    return {each["SubnetId"]: each for each in found}


def private_subnets(settings: Settings, aws: Aws) -> dict[str, dict[str, Any]]:
    """Return the private subnets in the stack file that exist, by zone."""
    network, existing = settings.network.existing, subnets(settings, aws)
    ids = network.private_subnet_ids if network else {}
    return {zone: existing[identity] for zone, identity in ids.items() if identity in existing}


def endpoints(settings: Settings, aws: Aws) -> list[dict[str, Any]]:
    """Return the endpoints of the existing VPC."""
    network = settings.network.existing
    by_vpc = [filter_by("vpc-id", network.vpc_id)] if network else []
    return aws.items("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=by_vpc) if network else []


def is_endpoint_of(endpoint: Mapping[str, Any], region: str, service: str) -> bool:
    """Return whether an endpoint is an interface endpoint for the service's usual DNS name."""
    return (
        endpoint["VpcEndpointType"] == "Interface"
        and bool(endpoint.get("PrivateDnsEnabled"))
        and endpoint["ServiceName"] == service_name(region, service)
    )


def check_vpc(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the existing VPC has DNS support and DNS host names, and that `network.cidr` is one of its ranges.

    Source: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html, "VPC requirements".
    """
    network, cidr = settings.network.existing, settings.network.cidr
    if network is None:
        return []
    vpc, name, key = _vpc(settings, aws), f"'{network.vpc_id}'", f"{KEY}.vpcId"
    if vpc is None:
        message = (
            f"{name} does not exist in {settings.region}. It must be a VPC of this account in this region"
        )
        return [Finding(key, message)]
    findings = []
    if cidr is not None and cidr not in _cidrs(vpc):
        message = f"'{cidr}' is not a range of {name}. It must be {' or '.join(_cidrs(vpc))}"
        findings.append(Finding(f"{KEY}.cidr", message))
    for flag, option in (
        ("enableDnsSupport", "--enable-dns-support"),
        ("enableDnsHostnames", "--enable-dns-hostnames"),
    ):
        answer = aws.call("ec2", "describe_vpc_attribute", VpcId=network.vpc_id, Attribute=flag) or {}
        if not answer.get(flag[0].upper() + flag[1:], {}).get("Value"):
            command = f"aws ec2 modify-vpc-attribute --vpc-id {network.vpc_id} {option}"
            findings.append(Finding(key, f"{name} has {flag} off. It must be on: {command}"))
    return findings


def check_subnets(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that existing subnets belong to the VPC and are in the zone of the stack file."""
    findings, existing = [], subnets(settings, aws)
    vpc = settings.network.existing.vpc_id if settings.network.existing else ""
    for key, zone, identity in subnet_keys(settings):
        found = existing.get(identity)
        if found is None:
            message = f"does not exist in {settings.region}. It must be a subnet of {vpc} in {zone}"
        elif found["VpcId"] != vpc:
            message = f"belongs to {found['VpcId']}. It must be a subnet of {vpc}"
        elif found["AvailabilityZone"] != zone:
            message = f"is in {found['AvailabilityZone']}. It must be a subnet in {zone}"
        else:
            continue
        findings.append(Finding(key, f"'{identity}' {message}"))
    return findings


def check_addresses(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that existing private subnets have enough free addresses for all nodes and other resources of the stack."""
    if settings.network.existing is None:
        return []
    own, findings = _own_addresses(settings, aws), []
    existing = private_subnets(settings, aws)
    for zone, needs in needed_addresses(settings).items():
        if zone not in existing:
            continue
        identity, need = existing[zone]["SubnetId"], sum(needs.values())
        free = int(existing[zone]["AvailableIpAddressCount"]) + own.get(identity, 0)
        if free < need:
            what = ", ".join(f"{name}: {count}" for name, count in needs.items())
            message = (
                f"'{identity}' has {free} free addresses, but the stack may need {need} ({what}). It must be a larger"
                " subnet, or the pools must have fewer nodes"
            )
            findings.append(Finding(f"{KEY}.privateSubnetIds.{zone}", message))
    return findings


def _own_addresses(settings: Settings, aws: Aws) -> dict[str, int]:
    """Return the addresses that this stack already has in each subnet, by its tags or those of the VPC CNI."""
    network, result = settings.network.existing, dict[str, int]()
    ids = sorted(network.private_subnet_ids.values()) if network else []
    for each in aws.items(
        "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=[filter_by("subnet-id", *ids)]
    ):
        tags = tags_of(each, key="TagSet")
        is_cni = tags.get("cluster.k8s.amazonaws.com/name") == settings.cluster.name
        if is_cni or has(tags, own_tags(settings)):
            count = len(each.get("PrivateIpAddresses") or [])
            count += PREFIX_ADDRESSES * len(each.get("Ipv4Prefixes") or [])
            result[each["SubnetId"]] = result.get(each["SubnetId"], 0) + count
    return result


def check_tags(settings: Settings, aws: Aws) -> list[Finding]:
    """Check subnets for tags of this stack, of another owning cluster, and of public load balancers on private subnets.

    Sources: https://docs.aws.amazon.com/eks/latest/userguide/network-load-balancing.html (roles), and
    https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html (`kubernetes.io/cluster/...`: owned).
    """
    stack, findings, existing = own_tags(settings), [], subnets(settings, aws)
    own = "has this stack's tags. Remove them; `destroy` deletes what has these tags"
    vpc = _vpc(settings, aws)
    if vpc and has(tags_of(vpc), stack):
        findings.append(Finding(f"{KEY}.vpcId", f"'{vpc['VpcId']}' {own}"))
    for key, _, identity in subnet_keys(settings):
        tags = tags_of(existing.get(identity, {}))
        if tags and has(tags, stack):
            findings.append(Finding(key, f"'{identity}' {own}"))
        for name, value in sorted(tags.items()):
            other = name.removeprefix("kubernetes.io/cluster/")
            if other not in (name, settings.cluster.name) and value == "owned":
                message = (
                    f"'{identity}' has the tag {name}: owned, so it is deleted with cluster {other}. It must be a"
                    " subnet of no cluster, or shared"
                )
                findings.append(Finding(key, message))
        if "privateSubnetIds" in key and "kubernetes.io/role/elb" in tags:
            message = f"'{identity}' has the tag kubernetes.io/role/elb of public load balancers. Remove it"
            findings.append(Finding(key, message))
    return findings


def check_acls(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that network ACLs of existing subnets allow traffic in and out. Rules beside the defaults are a warning."""
    subnet_ids = sorted({identity for _, _, identity in subnet_keys(settings)})
    by_subnet = [filter_by("association.subnet-id", *subnet_ids)]
    found = aws.items("ec2", "describe_network_acls", "NetworkAcls", Filters=by_subnet) if subnet_ids else []
    acls = {each["SubnetId"]: acl for acl in found for each in acl.get("Associations") or []}
    return [
        finding
        for key, _, identity in subnet_keys(settings)
        if identity in acls
        for finding in _acl_findings(key, identity, acls[identity])
    ]


def _acl_findings(key: str, subnet: str, acl: Mapping[str, Any]) -> Iterator[Finding]:
    name, partly = f"'{subnet}' has the network ACL {acl['NetworkAclId']}, which", []
    for direction, egress in (("in", False), ("out", True)):
        allowed = _allowed(acl, egress=egress)
        if allowed == "nothing":
            message = f"{name} allows nothing {direction}. It must allow all traffic of the VPC, and HTTPS with answers"
            yield Finding(key, message)
        elif allowed == "some":
            partly.append(direction)
    if partly:
        message = (
            f"{name} does not allow everything {' and '.join(partly)}. Nodes need all traffic between the subnets, and"
            " HTTPS with its answers"
        )
        yield Finding(key, message, WARNING)


def _allowed(acl: Mapping[str, Any], *, egress: bool) -> str:
    """Return whether an ACL allows all, some or no traffic. The matching rule with the lowest number decides."""
    has_denied = False
    for entry in sorted(acl.get("Entries") or [], key=lambda each: int(each["RuleNumber"])):
        if bool(entry["Egress"]) != egress:
            continue
        is_all = str(entry["Protocol"]) == ALL and entry.get("CidrBlock") == ANYWHERE
        if entry["RuleAction"] == "allow":
            return "all" if is_all and not has_denied else "some"
        if is_all:
            return "nothing"
        has_denied = True
    return "nothing"


def check_dns(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the existing VPC uses Amazon's DNS servers. Other servers are a warning."""
    vpc = _vpc(settings, aws)
    if vpc is None:
        return []
    by_id = [filter_by("dhcp-options-id", vpc.get("DhcpOptionsId") or "")]
    amazon = {*AMAZON_DNS, *(str(ipaddress.ip_network(each)[2]) for each in _cidrs(vpc)[:1])}
    others = [
        value["Value"]
        for each in aws.items("ec2", "describe_dhcp_options", "DhcpOptions", Filters=by_id)
        for option in each.get("DhcpConfigurations") or []
        if option["Key"] == "domain-name-servers"
        for value in option.get("Values") or []
        if value["Value"] not in amazon
    ]
    if not others:
        return []
    message = (
        f"'{vpc['VpcId']}' has other DNS servers than Amazon's ({', '.join(others)}). They must resolve the names of"
        " AWS services, of the cluster, and of endpoints and file systems in the VPC"
    )
    return [Finding(f"{KEY}.vpcId", message, WARNING)]
