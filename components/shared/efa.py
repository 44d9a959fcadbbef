"""Network interfaces of machines with EFA. Pure: no Pulumi."""

from __future__ import annotations

from typing import Any, Final

JsonObject = dict[str, Any]

NONE: Final = "none"
IP: Final = "ip"
BANDWIDTH: Final = "bandwidth"
POLICIES: Final = (NONE, IP, BANDWIDTH)
EFA_RESOURCE: Final = "vpc.amazonaws.com/efa"


def ip_interfaces(cards: int, policy: str, cards_per_ip_group: int = 1) -> tuple[int, ...]:
    """Indexes of the network cards that carry an interface with an IP address of its own, the first one always.

    `ip` saves addresses: one interface in all. `bandwidth` takes one per card, or one per group of cards where these
    share their bandwidth for IP traffic.
    """
    return tuple(range(0, cards, cards_per_ip_group)) if policy == BANDWIDTH else (0,)


def layout(cards: int, policy: str, cards_per_ip_group: int = 1) -> list[JsonObject]:
    """`spec.networkInterfaces` of an EC2NodeClass: one EFA per network card, beside the interfaces for IP traffic.

    The first card's IP interface is the machine's primary one (device 0), so that its EFA is device 1; on every other
    card it is the other way round (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html).
    Karpenter's own way, without this list, gives every card an EFA with an address: 32 addresses for one p5.

    Raises:
        ValueError: `cards` is not at least 1, or `policy` is neither `ip` nor `bandwidth`.
    """
    if cards < 1 or policy not in (IP, BANDWIDTH):
        raise ValueError(f"no EFA layout for {cards} cards with policy {policy!r}")
    with_ip = ip_interfaces(cards, policy, cards_per_ip_group)
    interfaces: list[JsonObject] = []
    for card in range(cards):
        if card in with_ip:
            interfaces.append(_interface(card, 0 if card == 0 else 1, "interface"))
        interfaces.append(_interface(card, 1 if card == 0 else 0, "efa-only"))
    return interfaces


def _interface(card: int, device: int, kind: str) -> JsonObject:
    return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
