"""Ways out of a given VPC: default routes with what stands behind them, or an endpoint per service. Pure checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from components.documents.vpc import service_name
from trainyard.preflight.groups import HTTPS, Group, lets_in
from trainyard.preflight.network import KEY, Endpoint, Nat, Route, Routing, Subnet
from trainyard.preflight.wanted import Caution, Problem, Unasked, WantedVpc

# Where a default route may lead so that machines without public addresses get out. An internet gateway is none of them:
# it serves public addresses only (https://docs.aws.amazon.com/vpc/latest/userguide/VPC_Internet_Gateway.html).
WAYS_OUT: Final = ("nat-", "tgw-", "vgw-", "pcx-", "eni-", "lgw-", "vpce-", "cagw-", "arn:")
# The same for public subnets: a firewall may stand before the internet gateway.
PUBLIC_WAYS_OUT: Final = ("igw-", "vpce-")
GONE_STATES: Final = ("blackhole",)


def check_ways_out(
    wanted: WantedVpc, found: dict[str, Subnet], routing: Routing, region: str
) -> list[Problem]:
    """Private subnets need a default route to something that works, or, isolated, an endpoint per service.

    Public ones need a way in and out for the load balancers that are for them.
    """
    problems = []
    for zone, subnet_id in wanted.public.items():
        route = _default(routing, subnet_id)
        if subnet_id in found and (route is None or not _leads(route, PUBLIC_WAYS_OUT)):
            problems.append(
                Problem(
                    key=f"{KEY}.publicSubnetIds.{zone}",
                    message=f"'{subnet_id}' has no default route to an internet gateway that works, so that it is no"
                    " public subnet; it must have one, or be left out",
                )
            )
    for zone, subnet_id in wanted.private.items():
        if subnet_id not in found:
            continue
        key = f"{KEY}.privateSubnetIds.{zone}"
        if wanted.isolated:
            table, _ = routing.tables.get(subnet_id, ("", ()))
            problems += _endpoints(wanted, key, subnet_id, table, routing, region)
        else:
            said = _default_route(subnet_id, routing)
            if said:
                problems.append(Problem(key=key, message=said))
    return problems


def _default(routing: Routing, subnet_id: str) -> Route | None:
    """The default route of a subnet."""
    _, routes = routing.tables.get(subnet_id, ("", ()))
    return next((route for route in routes if route.destination == "0.0.0.0/0"), None)


def _leads(route: Route, ways: tuple[str, ...]) -> bool:
    """Whether a route leads to one of these kinds of targets, and that is there."""
    return route.state not in GONE_STATES and route.target.startswith(ways)


def _default_route(subnet_id: str, routing: Routing) -> str | None:
    """What is wrong with the subnet's way out; None where nothing is."""
    wanted = "it must have a default route to a NAT gateway, or network.private: true with endpoints"
    default = _default(routing, subnet_id)
    if default is None:
        return f"'{subnet_id}' has no default route; {wanted}"
    if default.target.startswith("igw-"):
        return (
            f"'{subnet_id}' is a public subnet (its default route leads to {default.target}), and machines here have"
            f" no public addresses; {wanted}"
        )
    if default.target.startswith("nat-"):
        problem = _nat(routing, routing.nats.get(default.target))
        if problem:
            return f"'{subnet_id}' has its default route to {default.target}, which {problem}; {wanted}"
    if not _leads(default, WAYS_OUT):
        return f"'{subnet_id}' has a default route that leads nowhere ({default.target or 'blackhole'}); {wanted}"
    return None


def _nat(routing: Routing, nat: Nat | None) -> str | None:
    """What is wrong with a NAT gateway as a way out; None where nothing is.

    From its own subnet a public one must reach the internet, or what leads there; a private one has no address that an
    internet gateway serves (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-nat-gateway.html).
    """
    state = nat.state if nat else "deleted"
    if nat is None or state != "available":
        return f"is {state}"
    if nat.subnet_id is None:
        return None
    onward = _default(routing, nat.subnet_id)
    behind = tuple(way for way in WAYS_OUT if way != "nat-")
    if onward is not None and _leads(onward, (*behind, "igw-") if nat.public else behind):
        return None
    if nat.public:
        return f"lies in {nat.subnet_id}, a subnet without a default route to an internet gateway"
    return "is a private NAT gateway, from which no default route leads to another way out"


def check_s3(wanted: WantedVpc, found: dict[str, Subnet], routing: Routing, region: str) -> list[Caution]:
    """Private subnets with a way out that reach S3 by it, too: layers of images, data and models then pay for the NAT.

    A VPC of the stack always has the endpoint; in a given one the route tables are its owner's. Without another way out
    it must be there (`check_ways_out`). Source: https://docs.aws.amazon.com/vpc/latest/privatelink/gateway-endpoints.html
    """
    up = _available(routing)
    if wanted.isolated or _of_service(up, region, "s3"):
        return []
    told = []
    for zone, subnet_id in wanted.private.items():
        table, _ = routing.tables.get(subnet_id, ("", ()))
        has_way_out = subnet_id in found and _default(routing, subnet_id) is not None
        if has_way_out and not _has_gateway(up, region, table):
            message = (
                f"'{subnet_id}' has no route to a gateway endpoint for S3, which costs nothing: images, data and models"
                f" go by its default route, where a NAT gateway costs by the gigabyte; its route table {table} should"
                " be one of the endpoint's"
            )
            told.append(Caution(key=f"{KEY}.privateSubnetIds.{zone}", message=message))
    return told


def _available(routing: Routing) -> list[Endpoint]:
    return [endpoint for endpoint in routing.endpoints if endpoint.state.lower() == "available"]


def _has_gateway(up: Sequence[Endpoint], region: str, table: str) -> bool:
    """Whether a route table leads to a gateway endpoint for S3."""
    service = service_name(region, "s3")
    return any(
        each.kind == "Gateway" and each.service == service and table in each.route_tables for each in up
    )


def _endpoints(
    wanted: WantedVpc, key: str, subnet_id: str, table: str, routing: Routing, region: str
) -> list[Problem]:
    up = _available(routing)
    problems = []
    missing = [name for name in wanted.endpoints if name != "s3" and not _of_service(up, region, name)]
    if missing:
        problems.append(
            Problem(
                key=f"{KEY}.private",
                message=f"is true, but {wanted.vpc_id} has no interface endpoint with private DNS names for"
                f" {', '.join(missing)}; it must have one each",
            )
        )
    if "s3" in wanted.endpoints and not _has_gateway(up, region, table):
        problems.append(
            Problem(
                key=key,
                message=f"'{subnet_id}' has no route to a gateway endpoint for S3, and no other way out; its route"
                f" table {table} must be in one",
            )
        )
    return problems


def _of_service(found: Sequence[Endpoint], region: str, name: str) -> list[Endpoint]:
    """The interface endpoints that answer to a service's usual name."""
    service = service_name(region, name)
    return [
        each for each in found if each.kind == "Interface" and each.private_dns and each.service == service
    ]


def needed_endpoints(wanted: WantedVpc, routing: Routing, region: str) -> list[Endpoint]:
    """The interface endpoints that are there, of services that machines without another way out need."""
    if not wanted.isolated:
        return []
    return [
        endpoint for name in wanted.endpoints for endpoint in _of_service(routing.endpoints, region, name)
    ]


def check_endpoint_groups(
    endpoints: Sequence[Endpoint],
    groups: Sequence[Group],
    workers: Collection[str],
    blocks: Collection[str],
) -> list[Problem | Unasked]:
    """Endpoints must let HTTPS in from the workers: their group, or all private subnets (`blocks`).

    Source: https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html
    """
    told: list[Problem | Unasked] = []
    for endpoint in endpoints:
        mine = [group for group in groups if group.group_id in endpoint.groups]
        open_in = lets_in(mine, ((HTTPS, HTTPS),), workers, blocks)
        who = f"{endpoint.endpoint_id} ({endpoint.service})"
        if open_in is None:
            message = f"whether {who} lets HTTPS in from the private subnets can't be told by its groups' prefix lists"
            told.append(Unasked(key=f"{KEY}.private", message=message))
        elif not open_in:
            message = (
                f"is true, but {who} lets no HTTPS in from {', '.join(blocks)}; a security group of it must allow TCP"
                f" port {HTTPS} from there"
            )
            told.append(Problem(key=f"{KEY}.private", message=message))
    return told
