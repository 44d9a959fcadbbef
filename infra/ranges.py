"""Which IPv4 ranges a VPC can have and which may reach an API over the internet. Pure; part of `infra.settings`."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from infra import formats

# A /7 is more than any company has.
WIDEST_PUBLIC: Final = 8
# "Public endpoint access CIDR ranges per cluster"
# (https://docs.aws.amazon.com/eks/latest/userguide/service-quotas.html).
MOST_PUBLIC: Final = 40
# RFC 1918, and RFC 6598, which a VPC may have, too
# (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html).
PRIVATE: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
LOOPBACK: Final = "127.0.0.0/8"
# "This network", link-local, multicast and the rest (RFC 6890): no machine has such an address.
NOBODYS: Final = ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
# For examples in documents, routed nowhere (RFC 5737).
DOCUMENTS: Final = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
ADDRESS: Final = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"
# What a VPC's range may be (vpc-cidr-blocks.html).
VPC_PREFIXES: Final = range(16, 29)


def public_problem(block: str) -> str | None:
    """Why a range can't be one that reaches the API over the internet. Loopback can: the local cloud is there.

    Ranges of documents can, too: they hold a place in stack files, of which the preflight tells (`documents`).
    """
    if re.fullmatch(ADDRESS, block):
        return f"'{block}' is an address; did you mean {block}/32?"
    if not re.fullmatch(formats.CIDR, block):
        return f"'{block}' is invalid; it must be an IPv4 range such as 203.0.113.0/24"
    try:
        network = ipaddress.IPv4Network(block)
    except ValueError as error:
        return f"{error}; it must be a range such as 203.0.113.0/24"
    right = "it must be the range that you deploy from"
    if network.prefixlen == 0:
        return f"'{block}' is the whole internet; {right}"
    if network.prefixlen < WIDEST_PUBLIC:
        return f"'{block}' is a large part of the internet; {right}"
    if _in(network, PRIVATE):
        return (
            f"'{block}' is private, and nobody comes from it over the internet; it must be the public range that you"
            " deploy from"
        )
    if _in(network, NOBODYS):
        return f"'{block}' is nobody's address; {right}"
    # EKS is not known to take /08.
    return None if str(network) == block else f"'{block}' is invalid; it must be {network}"


def documents(block: str) -> bool:
    """Whether a range is one for documents, from which nobody comes."""
    return _in(ipaddress.IPv4Network(block), DOCUMENTS)


def new_vpc_problem(block: str) -> str | None:
    """Why a new VPC can't have a range, as far as its size is not asked (`components.documents.network`)."""
    if not _in(ipaddress.IPv4Network(block), PRIVATE):
        return f"'{block}' is not private; it must lie in {', '.join(PRIVATE[:-1])} or {PRIVATE[-1]}"
    return None


def given_vpc_problem(block: str) -> str | None:
    """Why no VPC can have a range. Public ones are somebody's, who may have them in a VPC."""
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
