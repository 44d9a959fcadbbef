"""Reading the network of a stack file; part of `infra.settings`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from components.documents import vpc
from infra import formats, ranges
from infra.model import ExistingVpc, Network
from infra.reading import Problems, Section, counted, hint, twice

ONLY_NEW: Final = ("zones", "natPerZone")


def zone_of(region: str, zone: str) -> bool:
    """Whether a zone's name is one of the region."""
    return bool(re.fullmatch(re.escape(region) + "[a-z]", zone))


def zones_of(region: str, zones: Iterable[str]) -> tuple[str, ...]:
    """Those of a network's zones that are in its region: the others are told there, and are of no use elsewhere."""
    return tuple(zone for zone in zones if zone_of(region, zone))


def read_network(problems: Problems, value: object, region: str, *, given_cluster: bool) -> Network:
    """The network. With a given cluster its subnets may lie in one zone; EKS itself needs two."""
    section = Section(problems, "trainyard:network", value)
    existing = _existing(section, region, given_cluster=given_cluster)
    zones = tuple(existing.private_subnet_ids) if existing else _zones(section, region)
    private = section.boolean("private", False)
    services = _services(section, region)
    if given_cluster and not existing:
        section.reject(
            "vpcId", "is missing; a given cluster (cluster.existing) needs the VPC that it is in, by vpcId"
        )
    nat = section.boolean("natPerZone", False)
    if private and nat:
        section.reject("natPerZone", "is true, but private: true has no NAT gateway; leave one of them out")
    if private and existing and existing.public_subnet_ids:
        section.reject("publicSubnetIds", "is given, but private: true has no public subnets; leave it out")
    logs = section.boolean("flowLogs", existing is None)
    days = section.integer_choice("flowLogRetentionDays", formats.LOG_DAYS, 365, unit="days")
    if not logs and section.has("flowLogRetentionDays"):
        section.reject("flowLogRetentionDays", "is given, but there are no flow logs; set flowLogs: true")
    block = _cidr(section, existing, needed=bool(services))
    section.done()
    return Network(
        cidr=block,
        zones=zones,
        nat_per_zone=nat,
        existing=existing,
        private=private,
        interface_endpoints=services,
        flow_logs=logs,
        flow_log_retention_days=days,
    )


def _existing(section: Section, region: str, *, given_cluster: bool) -> ExistingVpc | None:
    vpc = section.optional_text("vpcId", pattern=formats.id_pattern("vpc"), wanted=formats.id_wanted("vpc"))
    private = _subnets(section, "privateSubnetIds", region)
    public = _subnets(section, "publicSubnetIds", region)
    group = section.optional_text(
        "workerSecurityGroupId", pattern=formats.id_pattern("sg"), wanted=formats.id_wanted("sg")
    )
    if not section.has("vpcId"):
        for key in ("privateSubnetIds", "publicSubnetIds", "workerSecurityGroupId"):
            if section.has(key):
                section.reject(key, "is given without vpcId; it must come with the VPC that it is in")
        return None
    for key in ONLY_NEW:
        if section.has(key):
            section.reject(key, "is for a VPC that the stack makes, and vpcId gives one; leave it out")
    least = 1 if given_cluster else 2
    if not section.has("privateSubnetIds"):
        section.reject(
            "privateSubnetIds",
            "is missing; it must map zones to ids, such as us-west-2a: subnet-0123456789abcdef0",
        )
    elif "privateSubnetIds" not in section.wrong and len(private) < least:
        section.reject(
            "privateSubnetIds",
            f"has {counted(len(private), 'zone')}; an EKS cluster needs subnets in at least {least}",
        )
    both = sorted(set(private.values()) & set(public.values()))
    if both:
        section.reject(
            "publicSubnetIds", f"names {both[0]}, which is a private one, too; it must be another one"
        )
    return ExistingVpc(
        vpc_id=vpc or "", private_subnet_ids=private, public_subnet_ids=public, worker_group_id=group
    )


def _subnets(section: Section, key: str, region: str) -> dict[str, str]:
    found = section.text_map(
        key,
        keys=formats.ZONE,
        keys_wanted=f"a zone such as {region or 'us-west-2'}a",
        pattern=formats.id_pattern("subnet"),
        wanted=formats.id_wanted("subnet"),
    )
    for zone in found:
        if region and not zone_of(region, zone):
            section.reject(
                f"{key}.{zone}", f"'{zone}' is not in {region}; it must be a zone such as {region}a"
            )
            section.wrong.add(key)
    if again := twice(found.values()):
        section.reject(key, f"names '{again[0]}' twice; each zone has a subnet of its own")
    return found


def _zones(section: Section, region: str) -> tuple[str, ...]:
    zones = section.texts("zones", tuple(f"{region}{letter}" for letter in "abc"), wanted="a zone's name")
    if "zones" in section.wrong:
        return zones
    if len(zones) not in vpc.ZONES:
        section.reject("zones", f"has {counted(len(zones), 'zone')}; it must have 2 to 4")
    if again := twice(zones):
        section.reject("zones", f"names '{again[0]}' twice; each must be another one")
    for index, zone in enumerate(zones):
        if region and not zone_of(region, zone):
            section.reject(
                f"zones[{index}]", f"'{zone}' is not in {region}; it must be a zone such as {region}a"
            )
    return zones


def _services(section: Section, region: str) -> tuple[str, ...]:
    services = section.texts(
        "interfaceEndpoints", (), pattern=formats.ENDPOINT_SERVICE, wanted="a service's name such as ecr.api"
    )
    if "interfaceEndpoints" in section.wrong:
        return ()
    seen: dict[str, str] = {}
    for index, service in enumerate(services):
        short = vpc.short_name(service)
        if problem := _service_problem(service, short, region):
            section.reject(f"interfaceEndpoints[{index}]", problem)
        elif short in seen:
            said = (
                "is there already"
                if seen[short] == service
                else f"is '{seen[short]}', which is there already"
            )
            section.reject(f"interfaceEndpoints[{index}]", f"'{service}' {said}; each must be another one")
        seen.setdefault(short, service)
    return services


def _service_problem(service: str, short: str, region: str) -> str | None:
    full = vpc.full_name(service)
    if short in vpc.GATEWAYS:
        return f"'{service}' has a gateway endpoint; leave it out"
    if full and region and full[0] != region:
        return f"'{service}' is of {full[0]}, and the VPC is in {region}; it must be of {region}"
    if full is None and service not in vpc.KNOWN:
        return (
            f"'{service}' is not known{hint(service, vpc.KNOWN)}; it must be one of"
            f" {', '.join(sorted(vpc.KNOWN))}, or a full service name such as"
            f" com.amazonaws.{region or 'us-west-2'}.kinesis-streams"
        )
    return None


def _cidr(section: Section, existing: ExistingVpc | None, *, needed: bool) -> str | None:
    wanted = "an IPv4 range such as 10.64.0.0/16"
    if existing:
        given = section.optional_text("cidr", pattern=formats.CIDR, wanted=wanted)
        if "cidr" in section.wrong:
            return given
        if needed and given is None:
            section.reject("cidr", "is missing; interface endpoints in a given VPC need its range")
        elif given is not None and (problem := ranges.given_vpc_problem(given)):
            section.reject("cidr", problem)
        return given
    block = section.text("cidr", "10.64.0.0/16", pattern=formats.CIDR, wanted=wanted)
    if "cidr" not in section.wrong:
        try:
            vpc.subnets(block, 3)
        except ValueError as error:
            section.reject("cidr", f"{error}; it must be a private range of /16 to /20, such as 10.64.0.0/16")
        else:
            if problem := ranges.new_vpc_problem(block):
                section.reject("cidr", problem)
    return block
