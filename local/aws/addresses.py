"""Private addresses: unique in a subnet, and not reused while others are free.

moto chooses addresses of network interfaces at random, and reuses an instance's address at once. The next node would
then have the same name as the one that Kubernetes is still removing.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from moto.ec2.models.elastic_network_interfaces import NetworkInterfaceBackend
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.subnets import Subnet

from local.aws.errors import ApiError


def _take(subnet: Any, instance: Any) -> str:
    """Return the next address of a subnet.

    Raises:
        InsufficientFreeAddressesInSubnet: All addresses are in use.
    """
    # AWS reserves the first four addresses and the last one.
    last = int(subnet.cidr.broadcast_address) - 1
    first = int(subnet.cidr.network_address) + 4
    size = last - first + 1
    start = getattr(subnet, "trainyard_next", first)
    for step in range(size):
        number = first + (start - first + step) % size
        text = str(ipaddress.ip_address(number))
        if text not in subnet._subnet_ips:
            subnet.trainyard_next = number + 1
            subnet._subnet_ips[text] = instance
            return text
    raise ApiError(
        "InsufficientFreeAddressesInSubnet", f"There are not enough free addresses in subnet '{subnet.id}'."
    )


def install() -> None:
    """Allocate every private address from its subnet."""
    Subnet.get_available_subnet_ip = _take

    def release(self: Any, ip: str) -> None:
        self._subnet_ips.pop(ip, None)

    Subnet.del_subnet_ip = release

    create = NetworkInterfaceBackend.create_network_interface

    def create_network_interface(
        self: Any, subnet: Any, private_ip_address: Any, *args: Any, **kwargs: Any
    ) -> Any:
        place, address = self.get_subnet(subnet) if isinstance(subnet, str) else subnet, private_ip_address
        if address and ipaddress.ip_address(address) in place.cidr:
            place._subnet_ips.setdefault(address, None)
        else:  # moto gives NAT gateways any address at all
            address = _take(place, None)
        return create(self, place, address, *args, **kwargs)

    NetworkInterfaceBackend.create_network_interface = create_network_interface

    make_gateway = NatGateway.__init__

    def gateway(self: Any, *args: Any, **kwargs: Any) -> None:
        make_gateway(self, *args, **kwargs)
        self.private_ip = self._eni.private_ip_address
        self.connectivity_type = self.connectivity_type or "public"  # AWS's default, which moto leaves out

    NatGateway.__init__ = gateway
