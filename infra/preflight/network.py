"""A VPC that is given: pure checks on what EC2 said of it, its subnets and its ways out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from components.shared.endpoints import service_name
from infra.preflight.wanted import Problem, Wanted, WantedVpc

KEY: Final = "trainyard:network"
# Where a default route may lead so that machines without public addresses get out. An internet gateway is none of them:
# it serves public addresses only (https://docs.aws.amazon.com/vpc/latest/userguide/VPC_Internet_Gateway.html).
WAYS_OUT: Final = ("nat-", "tgw-", "vgw-", "pcx-", "eni-", "lgw-", "vpce-", "cagw-", "arn:")
GONE_STATES: Final = ("blackhole",)


@dataclass(frozen=True, kw_only=True)
class Vpc:
    """A VPC's ranges and flags, and the tags that somebody gave it."""

    vpc_id: str
    cidrs: tuple[str, ...]
    dns_support: bool
    dns_hostnames: bool
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
    """A VPC endpoint: full service name, Gateway or Interface, where it is, and whether it has the usual DNS names."""

    endpoint_id: str
    service: str
    kind: str
    state: str
    private_dns: bool = False
    subnets: frozenset[str] = frozenset()
    route_tables: frozenset[str] = frozenset()
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Routes of each subnet (subnet id to the table's id and routes), NAT gateways' states, and endpoints."""

    tables: dict[str, tuple[str, tuple[Route, ...]]]
    nat_states: dict[str, str]
    endpoints: tuple[Endpoint, ...]


def subnet_keys(vpc: WantedVpc) -> list[tuple[str, str, str]]:
    """(key, zone, subnet id) of every subnet that is given."""
    return [
        (f"{KEY}.{name}.{zone}", zone, subnet_id)
        for name, subnets in (("privateSubnetIds", vpc.private), ("publicSubnetIds", vpc.public))
        for zone, subnet_id in subnets.items()
    ]


def judge_vpc(wanted: WantedVpc, found: Vpc | None, region: str) -> list[Problem]:
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


def judge_subnets(wanted: WantedVpc, found: dict[str, Subnet], region: str) -> list[Problem]:
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


def judge_addresses(wanted: WantedVpc, found: dict[str, Subnet], ours: dict[str, int]) -> list[Problem]:
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


def judge_ways_out(
    wanted: WantedVpc, found: dict[str, Subnet], routing: Routing, region: str
) -> list[Problem]:
    """Private subnets need a default route to something that works, or, isolated, an endpoint per service."""
    problems = []
    for zone, subnet_id in wanted.private.items():
        if subnet_id not in found:
            continue
        key = f"{KEY}.privateSubnetIds.{zone}"
        table, routes = routing.tables.get(subnet_id, ("", ()))
        if wanted.isolated:
            problems += _endpoints(wanted, key, subnet_id, table, routing, region)
        else:
            said = _default_route(subnet_id, routes, routing.nat_states)
            if said:
                problems.append(Problem(key=key, message=said))
    return problems


def _default_route(subnet_id: str, routes: tuple[Route, ...], nat_states: dict[str, str]) -> str | None:
    """What is wrong with the subnet's way out; None where nothing is."""
    wanted = "it must have a default route to a NAT gateway, or network.private: true with endpoints"
    default = next((route for route in routes if route.destination == "0.0.0.0/0"), None)
    if default is None:
        return f"'{subnet_id}' has no default route; {wanted}"
    if default.target.startswith("igw-"):
        return (
            f"'{subnet_id}' is a public subnet (its default route leads to {default.target}), and machines here have"
            f" no public addresses; {wanted}"
        )
    if default.target.startswith("nat-"):
        state = nat_states.get(default.target, "deleted")
        if state != "available":
            return f"'{subnet_id}' has its default route to {default.target}, which is {state}; {wanted}"
    if default.state in GONE_STATES or not default.target.startswith(WAYS_OUT):
        return f"'{subnet_id}' has a default route that leads nowhere ({default.target or 'blackhole'}); {wanted}"
    return None


def _endpoints(
    wanted: WantedVpc, key: str, subnet_id: str, table: str, routing: Routing, region: str
) -> list[Problem]:
    up = [endpoint for endpoint in routing.endpoints if endpoint.state.lower() == "available"]
    problems = []
    missing = [
        name
        for name in wanted.endpoints
        if name != "s3"
        and not any(
            endpoint.kind == "Interface"
            and endpoint.private_dns
            and endpoint.service == service_name(region, name)
            for endpoint in up
        )
    ]
    if missing:
        problems.append(
            Problem(
                key=f"{KEY}.private",
                message=f"is true, but {wanted.vpc_id} has no interface endpoint with private DNS names for"
                f" {', '.join(missing)}; it must have one each",
            )
        )
    gateway = service_name(region, "s3")
    if "s3" in wanted.endpoints and not any(
        endpoint.kind == "Gateway" and endpoint.service == gateway and table in endpoint.route_tables
        for endpoint in up
    ):
        problems.append(
            Problem(
                key=key,
                message=f"'{subnet_id}' has no route to a gateway endpoint for S3, and no other way out; its route"
                f" table {table} must be in one",
            )
        )
    return problems


def judge_tags(wanted: Wanted, vpc: Vpc | None, found: dict[str, Subnet]) -> list[Problem]:
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


def judge_made_endpoints(wanted: Wanted, found: tuple[Endpoint, ...]) -> list[Problem]:
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
