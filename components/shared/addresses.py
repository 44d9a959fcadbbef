"""How many addresses of a subnet machines and pods take. Pure: no Pulumi."""

from __future__ import annotations

import ipaddress
import math
from typing import Final

from components.shared import efa

# The first four addresses and the last one of every subnet
# (https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html).
RESERVED_BY_AWS: Final = 5
# What EKS asks a cluster's subnet to have free for its own interfaces: at least six, sixteen are advised
# (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
CONTROL_PLANE: Final = 16
# Pods of the stack with an address of their own that a machine holds at most: device plugin, the node parts of two CSI
# drivers, monitoring; a worker, its placeholder, the pod that keeps the machine, a check; and two that have ended, as
# their addresses rest for half a minute.
PODS: Final = 10
# What a system node holds while the other one is away: add-ons, Karpenter, operators, controllers of the CSI drivers,
# launchers.
SYSTEM_PODS: Final = 20
# What the VPC CNI is told (docs/decisions/0014-addresses-of-pods.md): so many addresses are free for the next pods,
# WARM_IP_TARGET, and so many are there at least, MINIMUM_IP_TARGET. A machine with no more than `PODS` then never asks
# EC2 again (https://github.com/aws/amazon-vpc-cni-k8s/blob/master/docs/eni-and-ip-target.md).
SPARE: Final = 4
LEAST: Final = PODS + SPARE
# What it does by itself: one whole interface of spare addresses, WARM_ENI_TARGET=1 (the same page).
WARM_INTERFACES: Final = 1


def of_machine(
    *,
    interfaces: int,
    addresses: int,
    cards: int = 1,
    policy: str = efa.NONE,
    cards_per_ip_group: int = 1,
    first_efa_card: int = 0,
    pods: int = PODS,
    own_cni: bool = True,
) -> int:
    """Addresses that one machine takes from its subnet.

    The VPC CNI uses interfaces of the first network card, and an EFA there takes the place of one of them (Karpenter,
    `ENILimitedPods` in pkg/providers/instancetype/types.go). No pod gets the first address of an interface. Further
    interfaces for IP traffic, of the policy `bandwidth`, have one address each.

    Args:
        interfaces: network interfaces that the first card takes.
        addresses: IPv4 addresses of each of them.
        cards: network cards.
        policy: `none`, `ip` or `bandwidth`.
        cards_per_ip_group: cards that share their bandwidth for IP traffic.
        first_efa_card: the first network card that takes an EFA.
        pods: pods with an address of their own.
        own_cni: the CNI is configured by the stack; else, in a given cluster, it is taken to fill whole interfaces, for
            a handful of pods.
    """
    usable = _usable(interfaces, policy, first_efa_card)
    used = _used(usable, addresses, pods=pods, own_cni=own_cni)
    extra = len(efa.ip_interfaces(cards, policy, cards_per_ip_group)) - 1
    return extra + (_for_pods(usable, addresses, pods) + used if own_cni else used * addresses)


def interfaces_of_machine(
    *,
    interfaces: int,
    addresses: int,
    cards: int = 1,
    policy: str = efa.NONE,
    cards_per_ip_group: int = 1,
    first_efa_card: int = 0,
    pods: int = PODS,
    own_cni: bool = True,
) -> int:
    """Network interfaces of one machine: its EFA and IP interfaces, and those that the VPC CNI adds for pods.

    The arguments are those of `of_machine`.
    """
    of_pods = _used(_usable(interfaces, policy, first_efa_card), addresses, pods=pods, own_cni=own_cni)
    extra = len(efa.ip_interfaces(cards, policy, cards_per_ip_group)) - 1
    return of_pods + extra + (0 if policy == efa.NONE else cards - first_efa_card)


def _usable(interfaces: int, policy: str, first_efa_card: int) -> int:
    """Interfaces of the first network card that the VPC CNI can have."""
    return max(1, interfaces - (policy != efa.NONE and first_efa_card == 0))


def _for_pods(usable: int, addresses: int, pods: int) -> int:
    return min(max(LEAST, pods + SPARE), usable * (addresses - 1))


def _used(usable: int, addresses: int, *, pods: int, own_cni: bool) -> int:
    """Interfaces of the first network card that the VPC CNI takes."""
    if not own_cni:
        return min(usable, 1 + WARM_INTERFACES)
    return math.ceil(_for_pods(usable, addresses, pods) / (addresses - 1))


def of_file_system(capacity_gib: int) -> int:
    """Addresses of an FSx for Lustre file system, estimated: two servers for metadata, one per 1200 GiB."""
    return 2 + capacity_gib // 1200


def free_in(block: str) -> int:
    """Addresses of a subnet that are not AWS's own."""
    return ipaddress.IPv4Network(block).num_addresses - RESERVED_BY_AWS
