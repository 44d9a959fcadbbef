"""Check IPv4 ranges: of a VPC, and of clients that reach an API server over the internet."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from components.documents.vpc import WIDEST_PUBLIC_PREFIX
from infra.settings.formats import CIDR

# "Public endpoint access CIDR ranges per cluster"
# (https://docs.aws.amazon.com/eks/latest/userguide/service-quotas.html).
MAXIMUM_PUBLIC: Final = 40
# RFC 1918, and RFC 6598, which a VPC may also have
# (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html).
PRIVATE: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
LOOPBACK: Final = "127.0.0.0/8"
# "This network", link-local, multicast and the rest (RFC 6890): no host has such an address.
NOBODYS: Final = ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
# Documentation ranges, which are not routed (RFC 5737).
DOCUMENTS: Final = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
ADDRESS: Final = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"
# The allowed ranges of a VPC (vpc-cidr-blocks.html).
VPC_PREFIXES: Final = range(16, 29)


def public_problem(block: str) -> str | None:
    """Return why a range can't reach the API over the internet, else None. The local cloud has loopback addresses.

    Documentation ranges are accepted, because example stack files have them. The preflight reports them (`documents`).
    """
    if re.fullmatch(ADDRESS, block):
        return f"'{block}' is an address; did you mean {block}/32?"
    if not re.fullmatch(CIDR, block):
        return f"'{block}' is invalid; it must be an IPv4 range such as 203.0.113.0/24"
    try:
        network = ipaddress.IPv4Network(block)
    except ValueError as error:
        return f"{error}; it must be a range such as 203.0.113.0/24"
    must_be = "it must be the public range that you deploy from"
    if _in(network, PRIVATE):
        return f"'{block}' is private, and nobody comes from it over the internet; {must_be}"
    if _in(network, NOBODYS):
        return f"'{block}' is nobody's address; {must_be}"
    if network.prefixlen < WIDEST_PUBLIC_PREFIX and not _in(network, (LOOPBACK,)):
        return f"'{block}' is too large; {must_be}, /{WIDEST_PUBLIC_PREFIX} or smaller"
    return None


def documents(block: str) -> bool:
    """Return whether a range is only for documentation (RFC 5737)."""
    return _in(ipaddress.IPv4Network(block), DOCUMENTS)


def new_vpc_problem(block: str) -> str | None:
    """Return why a new VPC can't have a range, else None. `components.documents.vpc` checks its size."""
    if not _in(ipaddress.IPv4Network(block), PRIVATE):
        return f"'{block}' is not private; it must lie in {', '.join(PRIVATE[:-1])} or {PRIVATE[-1]}"
    return None


def existing_vpc_problem(block: str) -> str | None:
    """Return why no VPC can have a range, else None. A VPC may have a public range of its owner."""
    try:
        network = ipaddress.IPv4Network(block)
    except ValueError as error:
        return f"{error}; it must be the VPC's range, such as 10.64.0.0/16"
    if network.prefixlen not in VPC_PREFIXES:
        sizes = f"/{VPC_PREFIXES[0]} to /{VPC_PREFIXES[-1]}"
        return f"'{block}' is the range of no VPC, which is {sizes}; it must be the VPC's"
    if _in(network, (LOOPBACK, *NOBODYS)):
        return f"'{block}' is nobody's address; it must be the VPC's range, such as 10.64.0.0/16"
    return None


def _in(network: ipaddress.IPv4Network, blocks: tuple[str, ...]) -> bool:
    return any(network.subnet_of(ipaddress.IPv4Network(block)) for block in blocks)
