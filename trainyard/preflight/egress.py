"""Check the routes of an existing VPC and interface endpoints: nodes need a NAT gateway or an endpoint per service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from components.documents.vpc import service_name
from infra.settings import Settings
from trainyard.preflight.aws import Aws, filter_by, has, tags_of
from trainyard.preflight.findings import WARNING, Finding, new_endpoints, own_tags, required_endpoints
from trainyard.preflight.network import KEY, endpoints, is_endpoint_of, subnets

Route = Mapping[str, Any]
# Targets of a default route for nodes without public addresses. An internet gateway serves only public addresses
# (https://docs.aws.amazon.com/vpc/latest/userguide/VPC_Internet_Gateway.html).
EGRESS: Final = ("nat-", "tgw-", "vgw-", "pcx-", "eni-", "lgw-", "vpce-", "cagw-", "arn:")
# The same for public subnets. A firewall's endpoint may be in front of the internet gateway.
PUBLIC_EGRESS: Final = ("igw-", "vpce-")
# A route to an instance also has its interface, so the order matters.
TARGETS: Final = (
    "NatGatewayId",
    "TransitGatewayId",
    "NetworkInterfaceId",
    "VpcPeeringConnectionId",
    "LocalGatewayId",
    "CarrierGatewayId",
    "CoreNetworkArn",
    "GatewayId",
)


def _tables(settings: Settings, aws: Aws) -> dict[str, Mapping[str, Any]]:
    """Return the route table of each subnet of the existing VPC; the main one has the key ''."""
    network = settings.network.existing
    by_vpc = [filter_by("vpc-id", network.vpc_id if network else "")]
    return {
        "" if association.get("Main") else association.get("SubnetId", "none"): table
        for table in aws.items("ec2", "describe_route_tables", "RouteTables", Filters=by_vpc)
        for association in table.get("Associations") or []
    }


def _default_route(tables: Mapping[str, Mapping[str, Any]], subnet: str) -> Route | None:
    routes = (tables.get(subnet) or tables.get("") or {}).get("Routes") or []
    return next((each for each in routes if each.get("DestinationCidrBlock") == "0.0.0.0/0"), None)


def _target(route: Route) -> str:
    return next((str(route[key]) for key in TARGETS if route.get(key)), "")


def _leads_to(route: Route | None, targets: tuple[str, ...]) -> bool:
    """Return whether a route leads to an existing target of one of these kinds."""
    return route is not None and route.get("State") != "blackhole" and _target(route).startswith(targets)


def check_routes(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that private subnets have a working default route, and public ones a route to an internet gateway."""
    network = settings.network.existing
    if network is None:
        return []
    tables, existing, findings = _tables(settings, aws), subnets(settings, aws), []
    for zone, subnet in network.public_subnet_ids.items():
        if subnet in existing and not _leads_to(_default_route(tables, subnet), PUBLIC_EGRESS):
            message = (
                f"'{subnet}' has no working default route to an internet gateway, so it is not a public subnet. It must"
                " have one, or be omitted"
            )
            findings.append(Finding(f"{KEY}.publicSubnetIds.{zone}", message))
    if settings.network.private:
        return findings
    by_vpc = [filter_by("vpc-id", network.vpc_id)]
    gateways = aws.items("ec2", "describe_nat_gateways", "NatGateways", Filters=by_vpc)
    nats = {each["NatGatewayId"]: each for each in gateways}
    for zone, subnet in network.private_subnet_ids.items():
        problem = _route_problem(tables, nats, subnet) if subnet in existing else None
        if problem:
            message = (
                f"'{subnet}' {problem}. It must have a default route to a NAT gateway, or network.private: true with"
                " endpoints"
            )
            findings.append(Finding(f"{KEY}.privateSubnetIds.{zone}", message))
    return findings


def _route_problem(
    tables: Mapping[str, Mapping[str, Any]], nats: Mapping[str, Mapping[str, Any]], subnet: str
) -> str | None:
    """Return the error in the default route of a private subnet."""
    route = _default_route(tables, subnet)
    target = _target(route) if route else ""
    if route is None:
        return "has no default route"
    if target.startswith("igw-"):
        return f"is a public subnet (its default route leads to {target}), but nodes have no public addresses"
    if target.startswith("nat-"):
        problem = _nat_problem(tables, nats.get(target) or {"State": "deleted"})
        if problem:
            return f"has its default route to {target}, which {problem}"
    if not _leads_to(route, EGRESS):
        return f"has a default route to a missing target ({target or 'blackhole'})"
    return None


def _nat_problem(tables: Mapping[str, Mapping[str, Any]], nat: Mapping[str, Any]) -> str | None:
    """Return the error of a NAT gateway. A public one needs a route from its own subnet to the internet.

    A private one has no public address for an internet gateway
    (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-nat-gateway.html). A regional one is in no subnet.
    """
    if nat["State"] != "available":
        return f"is {nat['State']}"
    is_public = (nat.get("ConnectivityType") or "public") == "public"
    beyond = (*(each for each in EGRESS if each != "nat-"), *(("igw-",) if is_public else ()))
    subnet = nat.get("SubnetId")
    if not subnet or _leads_to(_default_route(tables, subnet), beyond):
        return None
    if is_public:
        return f"is in {subnet}, a subnet without a default route to an internet gateway"
    return "is a private NAT gateway without a default route to another gateway"


def _available(settings: Settings, aws: Aws) -> list[dict[str, Any]]:
    return [each for each in endpoints(settings, aws) if each["State"].lower() == "available"]


def check_s3_route(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that private subnets have a route to a gateway endpoint for S3. With a NAT gateway it is a warning.

    Traffic to S3 through a NAT gateway (images, data and models) has a price per gigabyte
    (https://docs.aws.amazon.com/vpc/latest/privatelink/gateway-endpoints.html).
    """
    network, is_private = settings.network.existing, settings.network.private
    if network is None:
        return []
    tables, found = _tables(settings, aws), _available(settings, aws)
    if not is_private and any(is_endpoint_of(each, settings.region, "s3") for each in found):
        return []
    with_route = {
        table
        for each in found
        if each["VpcEndpointType"] == "Gateway" and each["ServiceName"] == service_name(settings.region, "s3")
        for table in each.get("RouteTableIds") or []
    }
    findings, existing = [], subnets(settings, aws)
    for zone, subnet in network.private_subnet_ids.items():
        table = (tables.get(subnet) or tables.get("") or {}).get("RouteTableId", "")
        has_egress = is_private or _default_route(tables, subnet) is not None
        if subnet not in existing or not has_egress or table in with_route:
            continue
        key = f"{KEY}.privateSubnetIds.{zone}"
        if is_private:
            message = (
                f"'{subnet}' has no route to S3. Its route table {table} must be in a gateway endpoint for S3"
            )
            findings.append(Finding(key, message))
            continue
        message = (
            f"'{subnet}' has no route to a gateway endpoint for S3, so its traffic to S3 costs money at a NAT gateway."
            f" Add its route table {table} to a gateway endpoint, which is free"
        )
        findings.append(Finding(key, message, WARNING))
    return findings


def check_endpoints(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that an existing VPC has the endpoints it needs without other egress, and none that the stack creates."""
    network = settings.network.existing
    if network is None:
        return []
    findings, found = [], _available(settings, aws)
    missing = [
        name
        for name in required_endpoints(settings)
        if name != "s3" and not any(is_endpoint_of(each, settings.region, name) for each in found)
    ]
    if missing:
        message = (
            f"is true, but {network.vpc_id} has no interface endpoint with private DNS names for {', '.join(missing)}."
            " It must have one for each"
        )
        findings.append(Finding(f"{KEY}.private", message))
    # Two endpoints can't have the same private DNS name.
    for name in new_endpoints(settings):
        service = service_name(settings.region, name)
        for each in endpoints(settings, aws):
            is_own = has(tags_of(each), own_tags(settings))
            if each.get("PrivateDnsEnabled") and each["ServiceName"] == service and not is_own:
                message = (
                    f"contains {name}, but {network.vpc_id} has {each['VpcEndpointId']} for it. Remove {name}"
                )
                findings.append(Finding(f"{KEY}.interfaceEndpoints", message))
    return findings


def check_endpoint_services(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that AWS offers the stack's interface endpoints in the region and in every zone of the network.

    AWS refuses an endpoint in another zone only at its creation
    (https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html).
    """
    names = new_endpoints(settings)
    # A call with an unknown name would fail, so all services are read.
    services = aws.items("ec2", "describe_vpc_endpoint_services", "ServiceDetails") if names else []
    zones = {
        each["ServiceName"]: each.get("AvailabilityZones") or []
        for each in services
        if any(kind["ServiceType"] == "Interface" for kind in each["ServiceType"])
    }
    offered = {name: zones.get(service_name(settings.region, name)) for name in names}
    return list(_service_findings(settings, offered))


def _service_findings(settings: Settings, offered: Mapping[str, list[str] | None]) -> Iterator[Finding]:
    if absent := [name for name, zones in offered.items() if zones is None]:
        message = (
            f"{', '.join(absent)}: {settings.region} offers no such interface endpoint. Remove it; network.private:"
            " true needs a region with all of its endpoints"
        )
        yield Finding(f"{KEY}.interfaceEndpoints", message)
    for name, zones in offered.items():
        without = [each for each in settings.network.zones if zones is not None and each not in zones]
        if without and zones is not None:
            message = (
                f"{', '.join(without)}: the interface endpoint {name} is not offered there. It must be in"
                f" {', '.join(sorted(zones))}, or without this endpoint"
            )
            yield Finding(f"{KEY}.{'privateSubnetIds' if settings.network.existing else 'zones'}", message)
