"""Network interfaces of machines with EFA. Pure: no Pulumi."""

from __future__ import annotations

import re
from typing import Any, Final

JsonObject = dict[str, Any]

NONE: Final = "none"
IP: Final = "ip"
BANDWIDTH: Final = "bandwidth"
POLICIES: Final = (NONE, IP, BANDWIDTH)
# The first VPC CNI that leaves interfaces without an address alone; an older one asks the machine for their address and
# fails (github.com/aws/amazon-vpc-cni-k8s, pull request 3047, release v1.18.5).
LEAST_VPC_CNI: Final = (1, 18, 5)


def ip_interfaces(cards: int, policy: str, cards_per_ip_group: int = 1) -> tuple[int, ...]:
    """Indexes of the network cards that carry an interface with an IP address of its own, the first one always.

    `cards` counts all network cards. `ip` saves addresses: one interface in all. `bandwidth` takes one per card, or one
    per group of cards where these share their bandwidth for IP traffic.
    """
    return tuple(range(0, cards, cards_per_ip_group)) if policy == BANDWIDTH else (0,)


def cni_problem(version: str) -> str | None:
    """What is wrong with a version of the VPC CNI for machines with EFA, such as v1.21.1-eksbuild.3, or None.

    Raises:
        ValueError: `version` is none.
    """
    found = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)(?:-.+)?", version)
    if found is None:
        raise ValueError(f"{version!r} is no version of the VPC CNI")
    if tuple(map(int, found.groups())) >= LEAST_VPC_CNI:
        return None
    return f"does not know efa-only interfaces; it must be v{'.'.join(map(str, LEAST_VPC_CNI))} or newer"


def layout(
    interfaces: int, policy: str, cards_per_ip_group: int = 1, first_efa_card: int = 0
) -> list[JsonObject]:
    """`spec.networkInterfaces` of an EC2NodeClass: one EFA per network card, beside the interfaces for IP traffic.

    The first card's IP interface is the machine's primary one (device 0), so that an EFA there is device 1; on every
    other card it is the other way round
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html).
    Karpenter's own way, without this list, gives every card an EFA with an address: 32 addresses for one p5.

    Args:
        interfaces: EFA interfaces, one per network card from `first_efa_card` on.
        policy: `ip` or `bandwidth`.
        cards_per_ip_group: cards that share their bandwidth for IP traffic.
        first_efa_card: the first network card that takes an EFA.

    Raises:
        ValueError: `interfaces` is not at least 1, or `policy` is neither `ip` nor `bandwidth`.
    """
    if interfaces < 1 or policy not in (IP, BANDWIDTH):
        raise ValueError(f"no EFA layout for {interfaces} cards with policy {policy!r}")
    cards = first_efa_card + interfaces
    with_ip = ip_interfaces(cards, policy, cards_per_ip_group)
    found: list[JsonObject] = []
    for card in range(cards):
        if card in with_ip:
            found.append(_interface(card, 0 if card == 0 else 1, "interface"))
        if card >= first_efa_card:
            found.append(_interface(card, 1 if card == 0 else 0, "efa-only"))
    return found


def _interface(card: int, device: int, kind: str) -> JsonObject:
    return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
