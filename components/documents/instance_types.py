"""Facts of the EC2 instance types that a pool may have.

Sources: Karpenter 1.14 `website/content/en/v1.14/reference/instance-types.md` (accelerators, EFA interfaces, local
disks), its `pkg/providers/instancetype/zz_generated.vpclimits.go` (network interfaces and their addresses; for trn2,
which that file lacks, the answer of EC2's DescribeInstanceTypes) and
https://docs.aws.amazon.com/ec2/latest/instancetypes/ (cores, memory), read 2026-11-21. A test compares the
whole table with DescribeInstanceTypes, network cards included (tests/unit/components/test_instance_types.py).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import partial
from typing import Final

from . import efa as efa_layouts
from .pool import CPU, GPU, NEURON, ON_DEMAND, PURCHASES, Pool

# Defaults of pools.
ROOT_VOLUME_GIB: Final = 200
IDLE_SECONDS: Final = 600


@dataclass(frozen=True)
class InstanceType:
    """An instance type. `efa` is the maximum number of EFA interfaces, `nvme_gb` the local disks in GB (0: none).

    `interfaces` is the number of network interfaces that the first network card supports, and `addresses` the
    number of IPv4 addresses of each. A type with EFA has one network card per EFA interface, from card
    `first_efa_card` on. The cards before it only support IP traffic. If groups of cards share their bandwidth for
    IP traffic, `cards_per_ip_group` is the size of a group
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html). `gigabits` is the network
    bandwidth of a type with EFA, of all its cards together, in Gbit/s.
    """

    name: str
    vcpus: int
    memory_gib: int
    accelerators: int = 0
    accelerator: str = ""
    nvme_gb: int = 0
    interfaces: int = 3
    addresses: int = 10
    efa: int = 0
    gigabits: float = 0
    resource: str = CPU
    cards_per_ip_group: int = 1
    first_efa_card: int = 0


# Left out on purpose, though they have EFA:
# - inf1.24xlarge and dl2q.24xlarge: their accelerators (Inferentia, Qualcomm AI 100) are for inference, and for the
#   latter EKS has no image (https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-optimized-ami.html);
# - p6e-gb200.36xlarge: on EKS it needs Dynamic Resource Allocation, which Karpenter does not support
#   (https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html), and none of the sources above
#   says how many EFA interfaces it has;
# - g7: its GPUs need NVIDIA's driver 595, and the pinned image (versions.AMI) has 580
#   (github.com/awslabs/amazon-eks-ami, doc/usage/g7-ami.md).


_gpu = partial(InstanceType, resource=GPU)
_neuron = partial(InstanceType, resource=NEURON)
# Type, cores, GiB, accelerators, their model, GB of local disks; then network interfaces of the first network card,
# addresses of each, EFA interfaces, Gbit/s with EFA (Karpenter's zz_generated.bandwidth.go). p5 and p5e: four network
# cards share the IP bandwidth of one interface. p6-b300: the first network card supports no EFA
# (github.com/aws/aws-parallelcluster/issues/7143 quotes AWS).
_GPU_TYPES: Final = (
    _gpu("g4dn.xlarge", 4, 16, 1, "T4", 125, 3, 10),
    _gpu("g4dn.2xlarge", 8, 32, 1, "T4", 225, 3, 10),
    _gpu("g4dn.4xlarge", 16, 64, 1, "T4", 225, 3, 10),
    _gpu("g4dn.8xlarge", 32, 128, 1, "T4", 900, 4, 15, 1, 50),
    _gpu("g4dn.12xlarge", 48, 192, 4, "T4", 900, 8, 30, 1, 50),
    _gpu("g4dn.16xlarge", 64, 256, 1, "T4", 900, 4, 15, 1, 50),
    _gpu("g4dn.metal", 96, 384, 8, "T4", 1800, 15, 50, 1, 100),
    _gpu("g5.xlarge", 4, 16, 1, "A10G", 250, 4, 15),
    _gpu("g5.2xlarge", 8, 32, 1, "A10G", 450, 4, 15),
    _gpu("g5.4xlarge", 16, 64, 1, "A10G", 600, 8, 30),
    _gpu("g5.8xlarge", 32, 128, 1, "A10G", 900, 8, 30, 1, 25),
    _gpu("g5.12xlarge", 48, 192, 4, "A10G", 3800, 15, 50, 1, 40),
    _gpu("g5.16xlarge", 64, 256, 1, "A10G", 1900, 8, 30, 1, 25),
    _gpu("g5.24xlarge", 96, 384, 4, "A10G", 3800, 15, 50, 1, 50),
    _gpu("g5.48xlarge", 192, 768, 8, "A10G", 7600, 7, 50, 1, 100),
    _gpu("g6.xlarge", 4, 16, 1, "L4", 250, 4, 15),
    _gpu("g6.2xlarge", 8, 32, 1, "L4", 450, 4, 15),
    _gpu("g6.4xlarge", 16, 64, 1, "L4", 600, 8, 30),
    _gpu("g6.8xlarge", 32, 128, 1, "L4", 900, 8, 30, 1, 25),
    _gpu("g6.12xlarge", 48, 192, 4, "L4", 3760, 8, 30, 1, 40),
    _gpu("g6.16xlarge", 64, 256, 1, "L4", 1880, 15, 50, 1, 25),
    _gpu("g6.24xlarge", 96, 384, 4, "L4", 3760, 15, 50, 1, 50),
    _gpu("g6.48xlarge", 192, 768, 8, "L4", 7520, 15, 50, 1, 100),
    _gpu("g6e.8xlarge", 32, 256, 1, "L40S", 900, 8, 30, 1, 25),
    _gpu("g6e.12xlarge", 48, 384, 4, "L40S", 3800, 10, 30, 1, 100),
    _gpu("g6e.16xlarge", 64, 512, 1, "L40S", 1900, 15, 50, 1, 35),
    _gpu("g6e.24xlarge", 96, 768, 4, "L40S", 3800, 10, 50, 2, 200),
    _gpu("g6e.48xlarge", 192, 1536, 8, "L40S", 7600, 10, 50, 4, 400),
    _gpu("g7e.8xlarge", 32, 256, 1, "RTX PRO 6000", 1900, 8, 64, 1, 100),
    _gpu("g7e.12xlarge", 48, 512, 2, "RTX PRO 6000", 3800, 10, 64, 1, 400),
    _gpu("g7e.24xlarge", 96, 1024, 4, "RTX PRO 6000", 7600, 10, 64, 2, 800),
    _gpu("g7e.48xlarge", 192, 2048, 8, "RTX PRO 6000", 15200, 10, 64, 4, 1600),
    _gpu("gr6.4xlarge", 16, 128, 1, "L4", 600, 8, 30),
    _gpu("gr6.8xlarge", 32, 256, 1, "L4", 900, 8, 30, 1, 25),
    _gpu("p3dn.24xlarge", 96, 768, 8, "V100", 1800, 15, 50, 1, 100),
    _gpu("p4d.24xlarge", 96, 1152, 8, "A100", 8000, 15, 50, 4, 400),
    _gpu("p4de.24xlarge", 96, 1152, 8, "A100", 8000, 15, 50, 4, 400),
    _gpu("p5.4xlarge", 16, 256, 1, "H100", 3800, 4, 30, 1, 100),
    _gpu("p5.48xlarge", 192, 2048, 8, "H100", 30400, 2, 50, 32, 3200, cards_per_ip_group=4),
    _gpu("p5e.48xlarge", 192, 2048, 8, "H200", 30400, 2, 50, 32, 3200, cards_per_ip_group=4),
    _gpu("p5en.48xlarge", 192, 2048, 8, "H200", 30400, 4, 50, 16, 3200),
    _gpu("p6-b200.48xlarge", 192, 2048, 8, "B200", 30400, 4, 50, 8, 3200),
    _gpu("p6-b300.48xlarge", 192, 4096, 8, "B300", 30400, 4, 50, 16, 6400, first_efa_card=1),
)
_NEURON_TYPES: Final = (
    _neuron("trn1.32xlarge", 128, 512, 16, "Trainium", 7600, 5, 50, 8, 800),
    _neuron("trn1n.32xlarge", 128, 512, 16, "Trainium", 7600, 5, 50, 16, 1600),
    _neuron("trn2.48xlarge", 192, 2048, 16, "Trainium2", 7600, 2, 50, 16, 3200),
)

# (family, GiB of memory per core): the general families in the sizes that system nodes and CPU training use.
_CPU_FAMILIES: Final = (
    ("c5", 2),
    ("m5", 4),
    ("c6i", 2),
    ("m6i", 4),
    ("r6i", 8),
    ("c7i", 2),
    ("m7i", 4),
    ("r7i", 8),
)
# Size -> (cores, network interfaces, addresses of each); all of these families have the same.
_CPU_SIZES: Final = {
    "large": (2, 3, 10),
    "xlarge": (4, 4, 15),
    "2xlarge": (8, 4, 15),
    "4xlarge": (16, 8, 30),
    "12xlarge": (48, 8, 30),
    "24xlarge": (96, 15, 50),
}

_CPU_TYPES: Final = tuple(
    InstanceType(
        name=f"{family}.{size}",
        vcpus=vcpus,
        memory_gib=vcpus * ratio,
        interfaces=interfaces,
        addresses=addresses,
    )
    for family, ratio in _CPU_FAMILIES
    for size, (vcpus, interfaces, addresses) in _CPU_SIZES.items()
)

TYPES: Final[dict[str, InstanceType]] = {t.name: t for t in (*_GPU_TYPES, *_NEURON_TYPES, *_CPU_TYPES)}

# GPU -> its compute capability (https://developer.nvidia.com/cuda-gpus).
COMPUTE_CAPABILITY: Final[dict[str, tuple[int, int]]] = {
    "V100": (7, 0),
    "T4": (7, 5),
    "A100": (8, 0),
    "A10G": (8, 6),
    "L4": (8, 9),
    "L40S": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
    "B300": (10, 3),
    "RTX PRO 6000": (12, 0),
}
# The trainer's torch (trainer/requirements.lock, 2.15.0) is built for CUDA 13, whose compiler and libraries begin
# with compute capability 7.5 (CUDA 13.0 release notes, "Deprecated Architectures"; github.com/pytorch/pytorch, issue
# 190385). The wheel itself names sm_75, sm_80, sm_86, sm_90, sm_100 and sm_120; each also serves newer ones with the
# same first number. torch 2.14 still has builds for CUDA 12.6, which begin with 5.0 (issue 190355 there).
TORCH_CUDA: Final = 13
TORCH_MINIMUM_CAPABILITY: Final = (7, 5)


def find_instance_type(name: str) -> InstanceType:
    """Return the facts of an instance type.

    Raises:
        ValueError: The type is not in the table.
    """
    if name in TYPES:
        return TYPES[name]
    near = nearest(name)
    help_text = f"such as {', '.join(near)}" if near else "which components/documents/instance_types.py lists"
    raise ValueError(f"instance type: '{name}' is unknown. It must be a type {help_text}.")


def make_pool(
    facts: InstanceType,
    *,
    name: str,
    zone: str,
    max_nodes: int,
    purchase: str = ON_DEMAND,
    capacity_reservation_ids: tuple[str, ...] = (),
    root_volume_gib: int = ROOT_VOLUME_GIB,
    idle_seconds: int = IDLE_SECONDS,
    efa_policy: str | None = None,
    warm_nodes: int = 0,
) -> Pool:
    """Return a pool of nodes of one instance type in one zone.

    Spot pools need the service-linked role AWSServiceRoleForEC2Spot once per account:
    `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`.

    `dataclasses.replace` sets the other fields of a `Pool`, such as `placement_group` and `makes_placement_group`,
    `reservation_type`, `on_demand_fallback` and `data_snapshot_id`.

    Args:
        facts: The instance type, from `find_instance_type`.
        name: The name of the NodePool.
        zone: The zone of the nodes, such as us-west-2b.
        max_nodes: The maximum number of nodes.
        purchase: on-demand, spot or reserved.
        capacity_reservation_ids: The reservations of a pool with the purchase `reserved`.
        root_volume_gib: The size of a node's disk.
        idle_seconds: After this time an empty node is terminated.
        efa_policy: `none`, `ip` (one interface for IP traffic) or `bandwidth` (one for each network card or group of
            cards that shares its bandwidth). By default `ip` if the type has EFA, else `none`.
        warm_nodes: The number of nodes that stay without a job.

    Raises:
        ValueError: `purchase` is unknown, or `max_nodes` is no whole number of at least 1.
    """
    if purchase not in PURCHASES:
        raise ValueError(f"purchase: {purchase!r} is unknown. It must be one of {', '.join(PURCHASES)}.")
    if type(max_nodes) is not int or max_nodes < 1:
        raise ValueError(f"max_nodes: {max_nodes!r} is invalid. It must be a whole number of at least 1.")
    policy = efa_policy or (efa_layouts.IP if facts.efa else efa_layouts.NONE)
    return Pool(
        name=name,
        instance_type=facts.name,
        zone=zone,
        max_nodes=max_nodes,
        purchase=purchase,
        capacity_reservation_ids=capacity_reservation_ids,
        root_volume_gib=root_volume_gib,
        idle_seconds=idle_seconds,
        resource=facts.resource,
        accelerators=facts.accelerators,
        vcpus=facts.vcpus,
        memory_gib=facts.memory_gib,
        nvme_gb=facts.nvme_gb,
        efa=facts.efa if policy != efa_layouts.NONE else 0,
        efa_policy=policy,
        cards_per_ip_group=facts.cards_per_ip_group,
        first_efa_card=facts.first_efa_card,
        gigabits=facts.gigabits if policy != efa_layouts.NONE else 0,
        warm_nodes=warm_nodes,
        interfaces=facts.interfaces,
        addresses_per_interface=facts.addresses,
    )


def torch_serves(facts: InstanceType) -> bool:
    """Return whether the trainer's torch has kernels for the GPUs of a type; True for a type without GPUs."""
    return facts.resource != GPU or COMPUTE_CAPABILITY[facts.accelerator] >= TORCH_MINIMUM_CAPABILITY


def nearest(name: str) -> list[str]:
    """Return up to three types of the table that are similar to `name`, of its family if it is known."""
    family = name.lower().partition(".")[0]
    siblings = [each for each in TYPES if each.startswith(f"{family}.")]
    return difflib.get_close_matches(name.strip().lower(), siblings or TYPES, n=3) or siblings[:3]
