"""Section `network` of a stack file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from components.documents import vpc
from infra.settings import ranges
from infra.settings.fields import FIXED, IN_PLACE, NEW_NODES, AsTuple, MapKey, Model, Text, hint, setting
from infra.settings.formats import ZONE, Cidr, LogDays, SecurityGroupId, ec2_id
from infra.settings.problems import Section, counted, twice

SubnetIds = dict[Annotated[str, MapKey("a zone such as us-west-2a", ZONE)], Annotated[str, ec2_id("subnet")]]
ZoneNames = Annotated[tuple[Annotated[str, Text("a zone's name")], ...], AsTuple]
EndpointServices = Annotated[
    # Short names, or full ones as they are in China (com.amazonaws.cn-north-1.sts).
    tuple[Annotated[str, Text("a service's name such as ecr.api", r"[a-z0-9][a-z0-9.-]*")], ...], AsTuple
]
ONLY_NEW = ("zones", "natPerZone")
ONLY_EXISTING = ("privateSubnetIds", "publicSubnetIds", "workerSecurityGroupId")


@dataclass(frozen=True, kw_only=True)
class ExistingVpc:
    """An existing VPC. Subnets are ids by zone. Without `worker_security_group_id`, the stack creates the group."""

    vpc_id: str
    private_subnet_ids: dict[str, str]
    public_subnet_ids: dict[str, str]
    worker_security_group_id: str | None


class Network(Model):
    """The VPC, created by the stack or an existing one.

    After `check`, `zones` has the zones of the subnets, and `cidr` is None if the range of an existing VPC is not
    needed. `interface_endpoints` are those of the stack file. A private network always has more.
    """

    vpc_id: Annotated[str, ec2_id("vpc")] | None = setting(None, FIXED, example="vpc-0123456789abcdef0")
    """An existing VPC. It excludes `zones` and `natPerZone`."""
    private_subnet_ids: SubnetIds = setting(
        {},
        "fixed, except on an existing cluster, in zones without a file system of the stack",
        example={"us-west-2b": "subnet-0a23456789abcdef0"},
    )
    """Subnets of the existing VPC for nodes and pods: zone to id."""
    public_subnet_ids: SubnetIds = setting(
        {}, "fixed, if the stack creates the cluster", example={"us-west-2b": "subnet-0b23456789abcdef0"}
    )
    """Subnets of the existing VPC for load balancers: zone to id."""
    worker_security_group_id: SecurityGroupId | None = setting(
        None, NEW_NODES, example="sg-0123456789abcdef0"
    )
    """A security group for the nodes of the pools, which must allow all traffic within itself. Without it, the stack
    creates one.
    """
    zones: ZoneNames = setting(
        (),
        "fixed, with their order",
        example=["us-west-2a", "us-west-2b", "us-west-2c"],
        default_text="a, b and c of the region",
    )
    """Availability zones of the subnets, 2 to 4."""
    private: bool = setting(False, FIXED, example=False)
    """No NAT and no internet gateway. Pods reach AWS through interface endpoints, and images come from
    `images.mirror`.
    """
    interface_endpoints: EndpointServices = setting((), IN_PLACE, example=["ecr.api", "ecr.dkr"])
    """AWS services to reach through an endpoint in the VPC. A VPC of the stack always has an endpoint for S3, and a
    private one has all that it needs.
    """
    nat_per_zone: bool = setting(False, IN_PLACE, example=True)
    """One NAT gateway in each zone, so that no zone depends on another. Otherwise there is one for all."""
    flow_logs: bool = setting(
        True,
        "in place, `false` deletes the logs",
        example=True,
        default_text="true; false for an existing VPC",
    )
    """Flow logs of the VPC in CloudWatch Logs."""
    flow_log_retention_days: LogDays = setting(365, IN_PLACE, example=90, unit="days")
    """The retention of the flow logs."""
    cidr: Cidr | None = setting(
        "10.64.0.0/16",
        "fixed, if the stack creates the VPC",
        example="10.64.0.0/16",
        default_text="10.64.0.0/16",
    )
    """The VPC's range, /16 to /20. It must have addresses for all nodes and their pods, about 15 per node. The range
    of a new VPC must be private. An existing VPC needs it only with `interfaceEndpoints` and `deployFrom: vpc`.
    """

    @property
    def existing(self) -> ExistingVpc | None:
        """Return the existing VPC, if there is one."""
        if self.vpc_id is None:
            return None
        return ExistingVpc(
            vpc_id=self.vpc_id,
            private_subnet_ids=self.private_subnet_ids,
            public_subnet_ids=self.public_subnet_ids,
            worker_security_group_id=self.worker_security_group_id,
        )


def is_zone_of(region: str, zone: str) -> bool:
    """Return whether a zone's name is one of the region."""
    return bool(re.fullmatch(re.escape(region) + "[a-z]", zone))


def zones_of(region: str, zones: Iterable[str]) -> tuple[str, ...]:
    """Return the zones of a network that are in its region. `check_network` reports the others."""
    return tuple(zone for zone in zones if is_zone_of(region, zone))


def check_network(section: Section[Network], region: str, *, has_existing_cluster: bool) -> Network:
    """Check the network and set its zones. A new cluster needs two zones; for an existing one, one is enough."""
    values = section.values
    is_existing = section.has("vpcId")
    if is_existing:
        _check_existing(section, region, minimum=1 if has_existing_cluster else 2)
        zones = tuple(values.private_subnet_ids)
    else:
        section.reject_given(ONLY_EXISTING, "is given without vpcId; it must come with the VPC that it is in")
        zones = _check_zones(section, region)
        if has_existing_cluster:
            section.reject(
                "vpcId",
                "is missing; an existing cluster (cluster.existing) needs the VPC that it is in, by vpcId",
            )
    if values.private and values.nat_per_zone:
        section.reject("natPerZone", "is true, but private: true has no NAT gateway; leave one of them out")
    if values.private and is_existing and values.public_subnet_ids:
        section.reject("publicSubnetIds", "is given, but private: true has no public subnets; leave it out")
    flow_logs = values.flow_logs if section.has("flowLogs") else not is_existing
    if not flow_logs and section.has("flowLogRetentionDays"):
        section.reject("flowLogRetentionDays", "is given, but there are no flow logs; set flowLogs: true")
    _check_services(section, region)
    return values.model_copy(
        update={
            "zones": zones,
            "flow_logs": flow_logs,
            "cidr": _check_cidr(section, is_existing=is_existing),
            # An invalid id also means an existing VPC.
            "vpc_id": values.vpc_id or "" if is_existing else None,
        }
    )


def _check_existing(section: Section[Network], region: str, *, minimum: int) -> None:
    values = section.values
    section.reject_given(ONLY_NEW, "is for a VPC that the stack makes, and vpcId gives one; leave it out")
    if not section.has("privateSubnetIds"):
        section.reject(
            "privateSubnetIds",
            "is missing; it must map zones to ids, such as us-west-2a: subnet-0123456789abcdef0",
        )
    for key, subnets in (
        ("privateSubnetIds", values.private_subnet_ids),
        ("publicSubnetIds", values.public_subnet_ids),
    ):
        for zone in subnets:
            if region and not is_zone_of(region, zone):
                section.reject(
                    f"{key}.{zone}", f"'{zone}' is not in {region}; it must be a zone such as {region}a"
                )
        if again := twice(subnets.values()):
            section.reject(key, f"'{again[0]}' is listed twice. Each zone must have its own subnet.")
    count = len(values.private_subnet_ids)
    if section.has("privateSubnetIds") and section.ok("privateSubnetIds") and count < minimum:
        section.reject(
            "privateSubnetIds",
            f"has {counted(count, 'zone')}; an EKS cluster needs subnets in at least {minimum}",
        )
    both = sorted(set(values.private_subnet_ids.values()) & set(values.public_subnet_ids.values()))
    if both:
        section.reject("publicSubnetIds", f"'{both[0]}' is also in privateSubnetIds. Remove one.")


def _check_zones(section: Section[Network], region: str) -> tuple[str, ...]:
    zones = section.values.zones
    if not section.has("zones"):
        return tuple(f"{region}{letter}" for letter in "abc")
    if not section.ok("zones"):
        return zones
    if len(zones) not in vpc.ZONES:
        section.reject("zones", f"has {counted(len(zones), 'zone')}; it must have 2 to 4")
    again = twice(zones)
    if again:
        section.reject("zones", f"'{again[0]}' is listed twice. Remove one.")
    for index, zone in enumerate(zones):
        if region and not is_zone_of(region, zone):
            section.reject(
                f"zones[{index}]", f"'{zone}' is not in {region}; it must be a zone such as {region}a"
            )
    # Of a zone that is there twice, another one may be meant, so that a pool's zone can't be checked.
    return () if again else zones


def _check_services(section: Section[Network], region: str) -> None:
    seen: dict[str, str] = {}
    for index, service in enumerate(section.values.interface_endpoints):
        key, short = f"interfaceEndpoints[{index}]", vpc.short_name(service)
        if problem := _service_problem(service, short, region):
            section.reject(key, problem)
        elif short in seen:
            how = "listed twice" if seen[short] == service else f"also listed as '{seen[short]}'"
            section.reject(key, f"'{service}' is {how}. Remove one.")
        seen.setdefault(short, service)


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


def _check_cidr(section: Section[Network], *, is_existing: bool) -> str | None:
    block = section.values.cidr
    if is_existing:
        if not section.has("cidr"):
            if section.values.interface_endpoints:
                section.reject("cidr", "is missing; interface endpoints in an existing VPC need its range")
            return None
        if block and section.ok("cidr") and (problem := ranges.existing_vpc_problem(block)):
            section.reject("cidr", problem)
        return block
    if block and section.ok("cidr"):
        try:
            vpc.subnets(block, 3)
        except ValueError as error:
            section.reject("cidr", str(error))
        else:
            if problem := ranges.new_vpc_problem(block):
                section.reject("cidr", problem)
    return block
