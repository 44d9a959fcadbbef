"""How the address range of a VPC is cut into subnets."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

# AWS takes VPCs and subnets of /16 to /28 (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html).
LARGEST_PREFIX: Final = 16
SMALLEST_PREFIX: Final = 28
# Every pod and every interface of a worker takes an address, so that a VPC below this size is no use here.
SMALLEST_VPC_PREFIX: Final = 20
ZONES: Final = range(2, 5)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One private and one public range per zone, in the order of the zones."""

    private: tuple[str, ...]
    public: tuple[str, ...]


def subnets(cidr: str, zones: int) -> Layout:
    """Cut a VPC's range for `zones` zones.

    Machines and pods live in the private subnets, so these take all but one of the equal blocks; the last block
    holds the public ones. Cutting for fewer zones never moves a subnet as long as the number of blocks stays.

    Raises:
        ValueError: the range is not a proper IPv4 network of /16 to /20, or `zones` is not 2, 3 or 4.
    """
    network = ipaddress.IPv4Network(cidr)
    if not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_VPC_PREFIX:
        raise ValueError(f"{cidr} has a prefix of /{network.prefixlen}")
    if zones not in ZONES:
        raise ValueError(f"{zones} zones; 2 to 4 can be served")
    extra = 3 if zones == ZONES[-1] else 2
    blocks = list(network.subnets(prefixlen_diff=extra))
    public = list(blocks[-1].subnets(prefixlen_diff=2))
    return Layout(
        private=tuple(str(block) for block in blocks[:zones]),
        public=tuple(str(block) for block in public[:zones]),
    )
