"""Network interfaces of nodes with EFA."""

from __future__ import annotations

import re
from typing import Final

from . import JsonObject

NONE: Final = "none"
IP: Final = "ip"
BANDWIDTH: Final = "bandwidth"
POLICIES: Final = (NONE, IP, BANDWIDTH)
# The first VPC CNI that ignores interfaces without an address; an older one asks the node for their address and
# fails (github.com/aws/amazon-vpc-cni-k8s, pull request 3047, release v1.18.5).
MINIMUM_VPC_CNI: Final = (1, 18, 5)


def ip_interfaces(cards: int, policy: str, cards_per_ip_group: int = 1) -> tuple[int, ...]:
    """Return the indexes of network cards with their own IP interface. The first card always has one.

    `cards` counts all network cards. The policy `ip` saves addresses: it has one interface in total. `bandwidth`
    has one per card, or one per group of cards that share their bandwidth for IP traffic.
    """
    return tuple(range(0, cards, cards_per_ip_group)) if policy == BANDWIDTH else (0,)


def cni_problem(version: str) -> str | None:
    """Return the problem of a VPC CNI version, such as v1.21.1-eksbuild.3, on nodes with EFA, or None.

    Raises:
        ValueError: `version` is not a version.
    """
    match = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)(?:-.+)?", version)
    if match is None:
        raise ValueError(f"{version!r}: must be a version of the VPC CNI such as v1.21.1-eksbuild.3")
    if tuple(map(int, match.groups())) >= MINIMUM_VPC_CNI:
        return None
    return f"does not know efa-only interfaces; it must be v{'.'.join(map(str, MINIMUM_VPC_CNI))} or newer"


def layout(
    interfaces: int, policy: str, cards_per_ip_group: int = 1, first_efa_card: int = 0
) -> list[JsonObject]:
    """Return `spec.networkInterfaces` of an EC2NodeClass: one EFA per network card, and the interfaces for IP traffic.

    The IP interface of the first card is the primary one of the instance (device 0), and the EFA of that card is
    device 1. On every other card, it is the other way round
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html). Without this list, Karpenter
    gives every card an EFA with an address: 32 addresses for one p5.

    Args:
        interfaces: EFA interfaces, one per network card from `first_efa_card` on.
        policy: `ip` or `bandwidth`.
        cards_per_ip_group: Cards that share their bandwidth for IP traffic.
        first_efa_card: The first network card that supports an EFA.

    Raises:
        ValueError: `interfaces` is not at least 1, or `policy` is neither `ip` nor `bandwidth`.
    """
    if interfaces < 1 or policy not in (IP, BANDWIDTH):
        raise ValueError(
            f"{interfaces} interfaces with policy {policy!r}: must be at least 1, and {IP} or {BANDWIDTH}"
        )
    cards = first_efa_card + interfaces
    with_ip = ip_interfaces(cards, policy, cards_per_ip_group)
    specs: list[JsonObject] = []
    for card in range(cards):
        if card in with_ip:
            specs.append(_interface(card, 0 if card == 0 else 1, "interface"))
        if card >= first_efa_card:
            specs.append(_interface(card, 1 if card == 0 else 0, "efa-only"))
    return specs


def _interface(card: int, device: int, kind: str) -> JsonObject:
    return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
