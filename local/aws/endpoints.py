"""Interface endpoints with network interfaces in their subnets and security groups, as on AWS.

moto gives the interfaces the default group, and loses them when subnets change. It also accepts what AWS refuses: two
subnets of one zone, a private name without the VPC's DNS attributes, a second endpoint with the same name.
https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.vpcs import VPCBackend
from moto.ec2.responses.vpcs import VPCs

from local.aws import interfaces
from local.aws.errors import ApiError


def is_interface(endpoint: Any) -> bool:
    """Return whether the endpoint has interfaces in subnets."""
    return str(endpoint.vpc_endpoint_type or "").lower() == "interface"


def _check_zones(backend: Any, subnet_ids: list[str]) -> None:
    zones: set[str] = set()
    for subnet_id in subnet_ids:
        zone = backend.get_subnet(subnet_id).availability_zone
        if zone in zones:
            raise ApiError(
                "DuplicateSubnetsInSameZone",
                f"Found another VPC endpoint subnet in the availability zone of {subnet_id}. VPC endpoint subnets "
                "should be in different availability zones supported by the VPC endpoint service.",
            )
        zones.add(zone)


def _check_groups(backend: Any, vpc_id: str, group_ids: list[str]) -> None:
    for group_id in group_ids:
        group = backend.get_security_group_from_id(group_id)
        if group is None or group.vpc_id != vpc_id:
            raise ApiError("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")


def _check_private_dns(backend: Any, vpc_id: str, service: str, itself: str | None = None) -> None:
    vpc = backend.get_vpc(vpc_id)
    if not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        raise ApiError(
            "InvalidParameter",
            "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true "
            f"for {vpc_id}",
        )
    for other in backend.vpc_end_points.values():
        same = other.vpc_id == vpc_id and other.service_name == service and other.id != itself
        if same and is_interface(other) and other.private_dns_enabled and other.state != "deleted":
            raise ApiError(
                "InvalidParameter",
                "private-dns-enabled cannot be set because there is already a conflicting DNS domain for "
                f"{service} in the VPC {vpc_id}",
            )


def _attach(backend: Any, endpoint: Any, subnet_ids: Iterable[str]) -> None:
    for subnet_id in subnet_ids:
        groups, description = list(endpoint.security_group_ids), f"VPC Endpoint Interface {endpoint.id}"
        interface = interfaces.add(backend, subnet_id, groups, description)
        interface.interface_type = "vpc_endpoint"
        endpoint.network_interface_ids.append(interface.id)


def _detach(backend: Any, endpoint: Any, subnet_ids: Collection[str]) -> None:
    gone = {each for each in endpoint.network_interface_ids if backend.enis[each].subnet.id in subnet_ids}
    endpoint.network_interface_ids = [each for each in endpoint.network_interface_ids if each not in gone]
    interfaces.remove(backend, gone)


def _move_routes(backend: Any, endpoint: Any, before: set[str]) -> None:
    """Update the routes to a gateway endpoint when its route tables change. moto only creates them with it."""
    prefixes = endpoint.destination_prefix_list_id
    after = set(endpoint.route_table_ids or [])
    if prefixes is None:
        return
    for table in before - after:
        backend.delete_route(table, prefixes)
    for table in after - before:
        backend.create_route(table, None, gateway_id=endpoint.id, destination_prefix_list_id=prefixes)


def install() -> None:
    """Wrap the four calls."""
    create, modify, delete = (
        VPCBackend.create_vpc_endpoint,
        VPCBackend.modify_vpc_endpoint,
        VPCBackend.delete_vpc_endpoints,
    )

    def create_vpc_endpoint(self: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("endpoint_type") or "").lower() != "interface":
            return create(self, **{**kwargs, "private_dns_enabled": False})
        vpc_id, subnets = kwargs["vpc_id"], list(kwargs.pop("subnet_ids", None) or [])
        _check_zones(self, subnets)
        groups = list(kwargs.pop("security_group_ids", None) or [])
        _check_groups(self, vpc_id, groups)
        if kwargs.get("private_dns_enabled"):
            _check_private_dns(self, vpc_id, kwargs["service_name"])
        # Without subnets: moto's own interfaces do not have the endpoint's groups.
        endpoint = create(self, **kwargs, subnet_ids=[], security_group_ids=groups)
        endpoint.subnet_ids = subnets
        _attach(self, endpoint, subnets)
        return endpoint

    def modify_vpc_endpoint(self: Any, **kwargs: Any) -> None:
        endpoint = self.describe_vpc_endpoints(vpc_end_point_ids=[kwargs["vpc_id"]])[0]
        if is_interface(endpoint):
            gone = set(kwargs.get("remove_subnets") or [])
            kept = [subnet for subnet in endpoint.subnet_ids if subnet not in gone]
            added = [subnet for subnet in kwargs.get("add_subnets") or [] if subnet not in kept]
            _check_zones(self, [*kept, *added])
            _check_groups(self, endpoint.vpc_id, kwargs.get("add_security_groups") or [])
        before = set(endpoint.route_table_ids or [])
        modify(self, **kwargs)
        if not is_interface(endpoint):
            _move_routes(self, endpoint, before)
            return
        _detach(self, endpoint, gone)
        groups = [self.get_security_group_from_id(group) for group in endpoint.security_group_ids]
        for interface_id in endpoint.network_interface_ids:
            self.enis[interface_id]._group_set = groups
        _attach(self, endpoint, added)

    def delete_vpc_endpoints(self: Any, vpce_ids: list[str] | None = None) -> None:
        # moto removes the interfaces, but keeps their addresses.
        for endpoint_id in vpce_ids or []:
            endpoint = self.vpc_end_points.get(endpoint_id)
            if endpoint is not None and is_interface(endpoint):
                _detach(self, endpoint, endpoint.subnet_ids)
        delete(self, vpce_ids)

    respond = VPCs.modify_vpc_endpoint

    def modify_with_private_dns(self: Any) -> ActionResult:
        wanted = self._get_bool_param("PrivateDnsEnabled")
        if wanted is not None:
            endpoint = self.ec2_backend.describe_vpc_endpoints(
                vpc_end_point_ids=[self._get_param("VpcEndpointId")]
            )[0]
            if wanted:
                _check_private_dns(self.ec2_backend, endpoint.vpc_id, endpoint.service_name, endpoint.id)
            endpoint.private_dns_enabled = wanted
        return respond(self)

    VPCBackend.create_vpc_endpoint = create_vpc_endpoint
    VPCBackend.modify_vpc_endpoint = modify_vpc_endpoint
    VPCBackend.delete_vpc_endpoints = delete_vpc_endpoints
    VPCs.modify_vpc_endpoint = modify_with_private_dns
