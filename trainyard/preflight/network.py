"""A VPC that is given: pure checks on what EC2 said of it, its subnets and its ways out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from components.documents.vpc import service_name
from trainyard.preflight.wanted import Problem, Wanted, WantedVpc

KEY: Final = "trainyard:network"


@dataclass(frozen=True, kw_only=True)
class Vpc:
    """A VPC's ranges (its first one first) and flags, the id of its DHCP options, and the tags that it was given."""

    vpc_id: str
    cidrs: tuple[str, ...]
    dns_support: bool
    dns_hostnames: bool
    dhcp_options: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """A subnet; `free` is its number of free addresses as EC2 counts them."""

    subnet_id: str
    vpc_id: str
    zone: str
    free: int
    cidr: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route: destination (CIDR or prefix list), where to, and `active` or `blackhole`."""

    destination: str
    target: str
    state: str = "active"


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A VPC endpoint: full service name, Gateway or Interface, where it is, and whether it has the usual DNS names.

    `groups` are the security groups of its interfaces.
    """

    endpoint_id: str
    service: str
    kind: str
    state: str
    private_dns: bool = False
    subnets: frozenset[str] = frozenset()
    route_tables: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Nat:
    """A NAT gateway: its state, whether it is a public one, and its subnet (None: it is in no subnet, but regional)."""

    state: str
    public: bool = True
    subnet_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Routes of each subnet, NAT gateways' too (subnet id to the table's id and routes), NAT gateways, endpoints."""

    tables: dict[str, tuple[str, tuple[Route, ...]]]
    nats: dict[str, Nat]
    endpoints: tuple[Endpoint, ...]


def subnet_keys(vpc: WantedVpc) -> list[tuple[str, str, str]]:
    """(key, zone, subnet id) of every subnet that is given."""
    return [
        (f"{KEY}.{name}.{zone}", zone, subnet_id)
        for name, subnets in (("privateSubnetIds", vpc.private), ("publicSubnetIds", vpc.public))
        for zone, subnet_id in subnets.items()
    ]


def check_vpc(wanted: WantedVpc, found: Vpc | None, region: str) -> list[Problem]:
    """It must exist and resolve names, which EKS's endpoints and nodes need.

    Source: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html, "VPC requirements".
    """
    if found is None:
        return [
            Problem(
                key=f"{KEY}.vpcId",
                message=f"'{wanted.vpc_id}' does not exist in {region}; it must be a VPC of this account there",
            )
        ]
    flags = (
        ("enableDnsSupport", found.dns_support, "--enable-dns-support"),
        ("enableDnsHostnames", found.dns_hostnames, "--enable-dns-hostnames"),
    )
    problems = []
    if wanted.cidr is not None and wanted.cidr not in found.cidrs:
        problems.append(
            Problem(
                key=f"{KEY}.cidr",
                message=f"'{wanted.cidr}' is not a range of '{wanted.vpc_id}'; it must be {' or '.join(found.cidrs)}",
            )
        )
    return problems + [
        Problem(
            key=f"{KEY}.vpcId",
            message=f"'{wanted.vpc_id}' has {name} off; it must be on:"
            f" aws ec2 modify-vpc-attribute --vpc-id {wanted.vpc_id} {option}",
        )
        for name, on, option in flags
        if not on
    ]


def check_subnets(wanted: WantedVpc, found: dict[str, Subnet], region: str) -> list[Problem]:
    """Each must exist, belong to the VPC and lie in the zone that the stack file says."""
    problems = []
    for key, zone, subnet_id in subnet_keys(wanted):
        subnet = found.get(subnet_id)
        if subnet is None:
            said = (
                f"'{subnet_id}' does not exist in {region}; it must be a subnet of {wanted.vpc_id} in {zone}"
            )
        elif subnet.vpc_id != wanted.vpc_id:
            said = f"'{subnet_id}' belongs to {subnet.vpc_id}; it must be a subnet of {wanted.vpc_id}"
        elif subnet.zone != zone:
            said = f"'{subnet_id}' lies in {subnet.zone}; it must be a subnet in {zone}"
        else:
            continue
        problems.append(Problem(key=key, message=said))
    return problems


def check_addresses(wanted: WantedVpc, found: dict[str, Subnet], ours: dict[str, int]) -> list[Problem]:
    """The private subnets must have room for all that the stack may have at its ceilings.

    `ours` maps a subnet to the addresses that this very stack has in it already.
    """
    problems = []
    for zone, takers in wanted.addresses.items():
        subnet = found.get(wanted.private[zone])
        if subnet is None:
            continue
        free, need = subnet.free + ours.get(subnet.subnet_id, 0), sum(takers.values())
        if free < need:
            what = ", ".join(f"{name}: {count}" for name, count in takers.items())
            problems.append(
                Problem(
                    key=f"{KEY}.privateSubnetIds.{zone}",
                    message=f"'{subnet.subnet_id}' has {free} free addresses, and {need} may be taken ({what});"
                    " it must be a larger subnet, or the pools must have fewer machines",
                )
            )
    return problems


def check_tags(wanted: Wanted, vpc: Vpc | None, found: dict[str, Subnet]) -> list[Problem]:
    """Tags that make what is given somebody else's, or put load balancers into the wrong subnets.

    Sources: https://docs.aws.amazon.com/eks/latest/userguide/network-load-balancing.html (roles), and
    https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html (`kubernetes.io/cluster/...`: owned).
    """
    assert wanted.vpc is not None  # noqa: S101 - for the type checker
    problems = []
    if vpc is not None and _same_stack(vpc.tags, wanted.tags):
        problems.append(Problem(key=f"{KEY}.vpcId", message=_made_here(vpc.vpc_id)))
    for key, _, subnet_id in subnet_keys(wanted.vpc):
        subnet = found.get(subnet_id)
        if subnet is None:
            continue
        if _same_stack(subnet.tags, wanted.tags):
            problems.append(Problem(key=key, message=_made_here(subnet_id)))
        for name, value in sorted(subnet.tags.items()):
            other = name.removeprefix("kubernetes.io/cluster/")
            if other not in (name, wanted.cluster) and value == "owned":
                problems.append(
                    Problem(
                        key=key,
                        message=f"'{subnet_id}' has the tag {name}: owned, so that it goes with cluster {other};"
                        " it must be a subnet of no cluster, or shared",
                    )
                )
        if "privateSubnetIds" in key and "kubernetes.io/role/elb" in subnet.tags:
            problems.append(
                Problem(
                    key=key,
                    message=f"'{subnet_id}' has the tag kubernetes.io/role/elb, by which public load balancers land"
                    " in it; it must not have it",
                )
            )
    return problems


def _same_stack(tags: dict[str, str], stack: dict[str, str]) -> bool:
    return all(tags.get(name) == value for name, value in stack.items())


def _made_here(identity: str) -> str:
    return (
        f"'{identity}' carries this stack's own tags, as what this stack makes and destroys does; it must be given"
        " without them"
    )


def check_made_endpoints(wanted: Wanted, found: tuple[Endpoint, ...]) -> list[Problem]:
    """An endpoint that the stack is to make must not be there: two can't answer to the service's usual name."""
    assert wanted.vpc is not None  # noqa: S101 - for the type checker
    strangers = {e.service: e for e in found if e.private_dns and not _same_stack(e.tags, wanted.tags)}
    problems = []
    for name in wanted.vpc.made_endpoints:
        there = strangers.get(service_name(wanted.region, name))
        if there is not None:
            problems.append(
                Problem(
                    key=f"{KEY}.interfaceEndpoints",
                    message=f"names {name}, for which {wanted.vpc.vpc_id} has {there.endpoint_id} already;"
                    " it must not be named",
                )
            )
    return problems
