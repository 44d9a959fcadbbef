"""`GET /_trainyard/mount`: whether an instance can mount a file system, by the rules for its Lustre client.

Servers open connections to clients, and clients to servers, so the security groups of both need both directions
(https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends

from local.aws.account import ACCOUNT_ID
from local.aws.errors import ApiError
from local.aws.fsx.store import FileSystem, store

PORTS = ((988, 988), (1018, 1023))


@dataclass(frozen=True)
class Side:
    """One end of a connection: its security groups and addresses."""

    name: str
    groups: tuple[Any, ...]
    addresses: tuple[str, ...]


def refusal(file_system_id: str, dns_name: str, mount_name: str, instance_id: str) -> str | None:
    """Return why the mount would fail; None if it would succeed."""
    file_system = store.file_systems.get(file_system_id)
    if file_system is None:
        return f"file system {file_system_id} does not exist"
    if file_system.document["Lifecycle"] != "AVAILABLE":
        return f"file system {file_system_id} is {file_system.document['Lifecycle']}"
    known = file_system.document["DNSName"], file_system.lustre["MountName"]
    if (dns_name, mount_name) != known:
        return f"{dns_name}@tcp:/{mount_name}: the file system is at {known[0]}@tcp:/{known[1]}"
    backend = ec2_backends[ACCOUNT_ID][file_system.region]
    try:
        instance = backend.get_instance(instance_id)
    except ServiceException:
        return f"instance {instance_id} does not exist"
    if instance.vpc_id != file_system.document["VpcId"]:
        return f"instance {instance_id} is in {instance.vpc_id}, not in {file_system.document['VpcId']}"
    return _closed(_client(backend, instance), _server(backend, file_system))


def require_open(backend: Any, subnet: Any, group_ids: list[str]) -> None:
    """Raise InvalidNetworkSettings if the servers of a file system can't reach each other."""
    groups = _groups(backend, group_ids)
    addresses = (str(ipaddress.ip_network(subnet.cidr_block)[4]),)  # any of the subnet's
    one, other = Side("the file system", groups, addresses), Side("itself", groups, addresses)
    if _closed(one, other):
        raise ApiError(
            "InvalidNetworkSettings",
            "The file system cannot be created because the default security group in the subnet provided or the "
            "provided security groups do not permit Lustre LNET network traffic on port 988",
        )


def _client(backend: Any, instance: Any) -> Side:
    cards = [card for card in backend.enis.values() if card.instance is instance]
    names = {group.id for card in cards for group in card.group_set}
    names |= {group.id for group in instance.security_groups}
    return Side(f"instance {instance.id}", _groups(backend, names), (instance.private_ip,))


def _server(backend: Any, file_system: FileSystem) -> Side:
    cards = [
        backend.enis[name] for name in file_system.document["NetworkInterfaceIds"] if name in backend.enis
    ]
    addresses = tuple(card.private_ip_address for card in cards)
    return Side(f"file system {file_system.id}", _groups(backend, file_system.group_ids), addresses)


def _groups(backend: Any, names: Iterable[str]) -> tuple[Any, ...]:
    found = (backend.get_security_group_from_id(name) for name in sorted(names))
    return tuple(group for group in found if group is not None)


def _closed(client: Side, server: Side) -> str | None:
    for source, target in ((client, server), (server, client)):
        for first, last in PORTS:
            ports = f"TCP {first}" if first == last else f"TCP {first}-{last}"
            if not _allows([r for g in source.groups for r in g.egress_rules], target, first, last):
                return f"no security group of {source.name} lets {ports} out to {target.name}"
            if not _allows([r for g in target.groups for r in g.ingress_rules], source, first, last):
                return f"no security group of {target.name} lets {ports} in from {source.name}"
    return None


def _allows(rules: list[Any], other: Side, first: int, last: int) -> bool:
    names = {group.id for group in other.groups}
    for rule in rules:
        if str(rule.ip_protocol) not in ("-1", "tcp", "6"):
            continue
        if str(rule.ip_protocol) != "-1" and not (int(rule.from_port) <= first and last <= int(rule.to_port)):
            continue
        if (rule.source_group or {}).get("GroupId") in names:
            return True
        network = (rule.ip_range or {}).get("CidrIp")
        if network and other.addresses and _holds(network, other.addresses):
            return True
    return False


def _holds(network: str, addresses: tuple[str, ...]) -> bool:
    return all(ipaddress.ip_address(address) in ipaddress.ip_network(network) for address in addresses)
