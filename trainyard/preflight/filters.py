"""What else filters a given VPC's traffic or answers its names: network ACLs and DNS servers. Pure checks.

An ACL that lets nothing through is wrong; of any other one than the VPC's usual one, which lets everything through, and
of DNS servers that are not Amazon's, only the owner knows whether they will do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.preflight.network import KEY, Vpc, subnet_keys
from trainyard.preflight.wanted import Caution, Problem, WantedVpc

ALL: Final = "-1"
ANYWHERE: Final = "0.0.0.0/0"
# Amazon's own DNS servers: as DHCP options name them, and by the one address that all VPCs have
# (https://docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html); the third is the range's third address.
AMAZON_DNS: Final = ("AmazonProvidedDNS", "169.254.169.253")
DIRECTIONS: Final = (("in", False), ("out", True))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A rule of a network ACL: the lowest `number` that fits decides. `protocol` -1 is all of them, with all ports."""

    number: int
    egress: bool
    allow: bool
    protocol: str
    block: str


@dataclass(frozen=True, kw_only=True)
class Acl:
    """A network ACL."""

    acl_id: str
    entries: tuple[Entry, ...]


def check_acls(wanted: WantedVpc, found: Mapping[str, Acl]) -> list[Problem | Caution]:
    """What the ACLs of the given subnets do; `found` maps a subnet to its ACL."""
    told: list[Problem | Caution] = []
    for key, _, subnet_id in subnet_keys(wanted):
        acl = found.get(subnet_id)
        if acl is None:
            continue
        own = []
        for word, egress in DIRECTIONS:
            everything, something = _through(acl, egress=egress)
            if not something:
                message = (
                    f"'{subnet_id}' has the network ACL {acl.acl_id}, which lets nothing {word}; it must let all"
                    " traffic of the VPC through, and HTTPS with its answers"
                )
                told.append(Problem(key=key, message=message))
            elif not everything:
                own.append(word)
        if own:
            message = (
                f"'{subnet_id}' has the network ACL {acl.acl_id}, which does not let everything {' and '.join(own)}:"
                " machines need all traffic among the subnets, and HTTPS with its answers"
            )
            told.append(Caution(key=key, message=message))
    return told


def _through(acl: Acl, *, egress: bool) -> tuple[bool, bool]:
    """Whether everything gets through in a direction, and whether anything does."""
    denied = False
    for entry in sorted(acl.entries, key=lambda each: each.number):
        if entry.egress != egress:
            continue
        whole = entry.protocol == ALL and entry.block == ANYWHERE
        if entry.allow:
            return whole and not denied, True
        if whole:
            return False, False
        denied = True
    return False, False


def check_dns(wanted: WantedVpc, vpc: Vpc | None, servers: Sequence[str]) -> list[Caution]:
    """DNS servers that the VPC's DHCP options name, unless they are Amazon's own."""
    amazons = {*AMAZON_DNS, *(str(ipaddress.ip_network(each)[2]) for each in (vpc.cidrs if vpc else ())[:1])}
    others = [each for each in servers if each not in amazons]
    if vpc is None or not others:
        return []
    message = (
        f"'{wanted.vpc_id}' has DNS servers of its own ({', '.join(others)}): they must know the names of AWS's"
        " services, of the cluster and, with endpoints or a file system, those of the VPC"
    )
    return [Caution(key=f"{KEY}.vpcId", message=message)]
