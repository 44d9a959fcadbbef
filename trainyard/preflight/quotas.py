"""Service quotas: pure arithmetic of what a stack needs, what is used and what the account allows.

Codes: `aws service-quotas list-service-quotas --service-code ec2` (and vpc, eks); names and families:
https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html. vCPU quotas count vCPUs, not machines.
Unused capacity reservations count towards the on-demand ones already; capacity blocks have a quota of their own, by
which they are bought (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservation-concepts.html).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.preflight.wanted import Problem, Wanted


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A quota: the service's code, its own code and name, and the unit of needs; its value counts `scale` of them."""

    service: str
    code: str
    name: str
    unit: str
    scale: int = 1


def _vcpus(code: str, name: str) -> Quota:
    return Quota(service="ec2", code=code, name=name, unit="vCPUs")


_STANDARD: Final = frozenset("acdhimrtz")
ON_DEMAND: Final = {
    "standard": _vcpus("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
    "g": _vcpus("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "p": _vcpus("L-417A185B", "Running On-Demand P instances"),
    "p5": _vcpus("L-417A185B", "Running On-Demand P instances"),
    "p6": _vcpus("L-417A185B", "Running On-Demand P instances"),
    "trn": _vcpus("L-2C3B7624", "Running On-Demand Trn instances"),
}
# P6's spot machines have a quota of their own, whose code no public page was found to name (2026-11-21): not judged.
SPOT: Final = {
    "standard": _vcpus("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    "g": _vcpus("L-3819A6DF", "All G and VT Spot Instance Requests"),
    "p": _vcpus("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "p5": _vcpus("L-C4BD4855", "All P5 Spot Instance Requests"),
    "trn": _vcpus("L-6B0D517C", "All Trn Spot Instance Requests"),
}
ELASTIC_IPS: Final = Quota(service="ec2", code="L-0263D0A3", name="EC2-VPC Elastic IPs", unit="addresses")
VPCS: Final = Quota(service="vpc", code="L-F678F1CE", name="VPCs per Region", unit="VPCs")
GATEWAYS: Final = Quota(
    service="vpc", code="L-A4707A72", name="Internet gateways per Region", unit="internet gateways"
)
# Its value is in TiB.
DISKS: Final = Quota(
    service="ebs",
    code="L-7A658B76",
    name="Storage for General Purpose SSD (gp3) volumes, in TiB",
    unit="GiB",
    scale=1024,
)
# Of Lustre's deployment types
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/limits.html; both kinds of scratch share one).
_SCRATCH: Final = Quota(service="fsx", code="L-AD2FC696", name="Lustre Scratch storage capacity", unit="GiB")
FILE_SYSTEMS: Final = {
    "SCRATCH_1": _SCRATCH,
    "SCRATCH_2": _SCRATCH,
    "PERSISTENT_1": Quota(
        service="fsx", code="L-C8640C82", name="Lustre Persistent_1 storage capacity", unit="GiB"
    ),
    "PERSISTENT_2": Quota(
        service="fsx", code="L-8F1B9C74", name="Lustre Persistent_2 storage capacity", unit="GiB"
    ),
}
# A quota of the region by its name, and enforced in each zone by itself (EC2's User Guide, "Application status checks",
# "Network architecture"): `trainyard.preflight.interfaces` judges it.
INTERFACES: Final = Quota(
    service="vpc", code="L-DF5E4CA3", name="Network interfaces per Region", unit="network interfaces"
)
CLUSTERS: Final = Quota(service="eks", code="L-1194D53C", name="Clusters", unit="clusters")


def family(instance_type: str) -> str | None:
    """The family that quotas group a type under; None for one that no pool here has."""
    found = re.match(r"([a-z]+)([0-9]*)", instance_type)
    if found is None:
        return None
    letters, generation = found.groups()
    if letters == "p":
        return f"p{generation}" if generation in ("5", "6") else "p"
    if letters in ("g", "gr", "vt"):
        return "g"
    if letters == "trn":
        return "trn"
    return "standard" if letters[:1] in _STANDARD and letters not in ("inf", "dl", "hpc", "mac") else None


def quota_of(instance_type: str, purchase: str) -> Quota | None:
    """The vCPU quota that a machine counts towards; None where there is none or its code is not known here."""
    group = family(instance_type)
    return (SPOT if purchase == "spot" else ON_DEMAND).get(group or "")


SYSTEM_KEY: Final = "trainyard:cluster.systemNodes"


@dataclass(frozen=True, kw_only=True)
class Use:
    """What one key of the stack file needs of a quota, and for what."""

    quota: Quota
    key: str
    amount: int
    what: str


def uses(wanted: Wanted) -> list[Use]:
    """Every need of the stack at its ceilings."""
    result = []
    if wanted.system:
        nodes = wanted.system
        what = f"{nodes.count} {nodes.instance_type}"
        quota = quota_of(nodes.instance_type, "on-demand")
        if quota:
            result.append(Use(quota=quota, key=SYSTEM_KEY, amount=nodes.count * nodes.vcpus, what=what))
        if nodes.disk_gib:
            amount = nodes.count * nodes.disk_gib
            result.append(Use(quota=DISKS, key=SYSTEM_KEY, amount=amount, what=f"the disks of {what}"))
    for pool in wanted.pools:
        quota = quota_of(pool.instance_type, pool.purchase)
        # What is reserved counts already, or never; only machines beside the reservation count anew.
        if quota and (pool.purchase != "reserved" or pool.on_demand_fallback):
            result.append(
                Use(
                    quota=quota,
                    key=f"{pool.key}.maxNodes",
                    amount=pool.max_nodes * pool.vcpus,
                    what=f"{pool.max_nodes} {pool.instance_type}",
                )
            )
        if pool.disks_gib:
            amount = pool.max_nodes * pool.disks_gib
            what = f"the disks of {pool.max_nodes} {pool.instance_type}"
            result.append(Use(quota=DISKS, key=f"{pool.key}.maxNodes", amount=amount, what=what))
    if wanted.new_lustre:
        deployment, capacity = wanted.new_lustre
        result.append(
            Use(
                quota=FILE_SYSTEMS[deployment],
                key="trainyard:storage.lustre.capacityGiB",
                amount=capacity,
                what=f"its file system of {deployment}",
            )
        )
    if wanted.vpc is None and wanted.existing_cluster is None:
        result.append(Use(quota=VPCS, key="trainyard:network", amount=1, what="its VPC"))
        if wanted.elastic_ips:
            what = f"{wanted.elastic_ips} NAT gateway{'s' if wanted.elastic_ips > 1 else ''}"
            result += [
                Use(
                    quota=ELASTIC_IPS,
                    key="trainyard:network.natPerZone",
                    amount=wanted.elastic_ips,
                    what=what,
                ),
                Use(quota=GATEWAYS, key="trainyard:network", amount=1, what="its internet gateway"),
            ]
    if wanted.existing_cluster is None:
        result.append(Use(quota=CLUSTERS, key="trainyard:cluster.name", amount=1, what=wanted.cluster))
    return result


def check_quotas(
    wanted: Wanted, limits: Mapping[str, float | None], used: Mapping[str, int]
) -> list[Problem]:
    """Each quota must hold what others use and what this stack needs.

    `limits` maps a code to the account's value (None: not known), `used` to what is in use, this stack's own left out.
    """
    problems = []
    needs = uses(wanted)
    for quota in dict.fromkeys(use.quota for use in needs):
        mine = [use for use in needs if use.quota == quota]
        problems += too_small(mine, limits.get(quota.code), used.get(quota.code, 0))
    return problems


def too_small(
    mine: Sequence[Use], value: float | None, others: int, zone: str | None = None
) -> list[Problem]:
    """What is wrong with a quota that all of `mine` need, and of which `others` are in use; None: it is not known.

    `zone` is named where the quota holds in each zone.
    """
    quota = mine[0].quota
    total = sum(use.amount for use in mine)
    limit = None if value is None else int(value * quota.scale)
    if limit is None or total + others <= limit:
        return []
    desired = math.ceil((total + others) / quota.scale)
    return [
        Problem(
            key=" and ".join(dict.fromkeys(use.key for use in mine)),
            message=f"{', '.join(use.what for use in mine)} need {total} {quota.unit} of the quota '{quota.name}'"
            f" ({quota.code}), of which {max(0, limit - others)} of {limit} are left{f' in {zone}' if zone else ''};"
            f" it must be {desired}: aws service-quotas request-service-quota-increase"
            f" --service-code {quota.service} --quota-code {quota.code} --desired-value {desired}",
        )
    ]
