"""Check service quotas: the stack's maximum, the use by others, and the account's limit.

Codes: `aws service-quotas list-service-quotas --service-code ec2` (and vpc, eks). Families:
https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html. Quotas for instances count vCPUs. Unused
capacity reservations count towards the on-demand quotas. Capacity blocks have another quota, for their purchase
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservation-concepts.html).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from components.documents import eks, instance_types
from infra.settings import Settings
from trainyard.preflight.aws import RUNNING, Aws, by_tags, filter_by, has, instances, tags_of
from trainyard.preflight.findings import Finding, own_tags, pool_key
from trainyard.preflight.storage import snapshots

SYSTEM_KEY: Final = "trainyard:cluster.systemNodes"


@dataclass(frozen=True)
class Quota:
    """A quota: the service's code, its own code and name, and the unit of uses. Its value is in `scale` units."""

    service: str
    code: str
    name: str
    unit: str = "vCPUs"
    scale: int = 1


@dataclass(frozen=True)
class Use:
    """The use of a quota by one key of the stack file, and its purpose."""

    quota: Quota
    key: str
    amount: int
    what: str


_P: Final = Quota("ec2", "L-417A185B", "Running On-Demand P instances")
ON_DEMAND: Final = {
    "standard": Quota(
        "ec2", "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
    ),
    "g": Quota("ec2", "L-DB2E81BA", "Running On-Demand G and VT instances"),
    "p": _P,
    "p5": _P,
    "p6": _P,
    "trn": Quota("ec2", "L-2C3B7624", "Running On-Demand Trn instances"),
}
# The spot quota of P6 is not checked: no public page was found to name its code (2026-11-21).
SPOT: Final = {
    "standard": Quota("ec2", "L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    "g": Quota("ec2", "L-3819A6DF", "All G and VT Spot Instance Requests"),
    "p": Quota("ec2", "L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "p5": Quota("ec2", "L-C4BD4855", "All P5 Spot Instance Requests"),
    "trn": Quota("ec2", "L-6B0D517C", "All Trn Spot Instance Requests"),
}
ELASTIC_IPS: Final = Quota("ec2", "L-0263D0A3", "EC2-VPC Elastic IPs", "addresses")
VPCS: Final = Quota("vpc", "L-F678F1CE", "VPCs per Region", "VPCs")
GATEWAYS: Final = Quota("vpc", "L-A4707A72", "Internet gateways per Region", "internet gateways")
# Its value is in TiB.
VOLUMES: Final = Quota(
    "ebs", "L-7A658B76", "Storage for General Purpose SSD (gp3) volumes, in TiB", "GiB", 1024
)
# By deployment type (https://docs.aws.amazon.com/fsx/latest/LustreGuide/limits.html).
_SCRATCH: Final = Quota("fsx", "L-AD2FC696", "Lustre Scratch storage capacity", "GiB")
FILE_SYSTEMS: Final = {
    "SCRATCH_1": _SCRATCH,
    "SCRATCH_2": _SCRATCH,
    "PERSISTENT_1": Quota("fsx", "L-C8640C82", "Lustre Persistent_1 storage capacity", "GiB"),
    "PERSISTENT_2": Quota("fsx", "L-8F1B9C74", "Lustre Persistent_2 storage capacity", "GiB"),
}
# Its name says region, but it applies to each zone (EC2's User Guide, "Application status checks",
# "Network architecture").
INTERFACES: Final = Quota("vpc", "L-DF5E4CA3", "Network interfaces per Region", "network interfaces")
CLUSTERS: Final = Quota("eks", "L-1194D53C", "Clusters", "clusters")


def quota_of(instance_type: str, purchase: str) -> Quota | None:
    """Return the vCPU quota of an instance type; None if it has none or its code is unknown."""
    found = re.match(r"([a-z]+)([0-9]*)", instance_type)
    letters, generation = found.groups() if found else ("", "")
    family = "standard" if letters[:1] in set("acdhimrtz") else ""
    if letters == "p":
        family = f"p{generation}" if generation in ("5", "6") else "p"
    elif letters in ("g", "gr", "vt"):
        family = "g"
    elif letters == "trn":
        family = "trn"
    elif letters in ("inf", "dl", "hpc", "mac"):
        family = ""
    return (SPOT if purchase == "spot" else ON_DEMAND).get(family)


def check_quotas(settings: Settings, aws: Aws) -> list[Finding]:
    """Check the quotas for vCPUs, volumes, a file system, elastic IPs, VPCs, internet gateways and clusters."""
    by_quota: dict[Quota, list[Use]] = defaultdict(list)
    for use in [*_node_uses(settings, aws), *_other_uses(settings)]:
        by_quota[use.quota].append(use)
    vcpus = _used_vcpus(settings, aws)
    return [
        finding
        for quota, uses in by_quota.items()
        for finding in _too_small(
            uses,
            quota_value(aws, quota),
            vcpus[quota] if quota.unit == "vCPUs" else _used(settings, aws, quota),
        )
    ]


def _node_uses(settings: Settings, aws: Aws) -> list[Use]:
    """Return the uses of all nodes at the pools' maximum."""
    uses: list[Use] = []

    def add(key: str, nodes: int, name: str, quota: Quota | None, vcpus: int, gib: int) -> None:
        if quota:
            uses.append(Use(quota, key, nodes * vcpus, f"{nodes} {name}"))
        uses.append(Use(VOLUMES, key, nodes * gib, f"the volumes of {nodes} {name}"))

    cluster = settings.cluster
    if cluster.existing is None:
        name = cluster.system_nodes.instance_type
        vcpus = instance_types.TYPES[name].vcpus
        add(SYSTEM_KEY, cluster.system_nodes.count, name, quota_of(name, "on-demand"), vcpus, eks.VOLUME_GIB)
    sizes = {identity: int(each["VolumeSize"]) for identity, each in snapshots(settings, aws).items()}
    for index, pool in enumerate(settings.pools):
        # Reserved capacity counts already, or never. Only instances outside the reservation count in addition.
        counts = pool.purchase != "reserved" or pool.on_demand_fallback
        quota = quota_of(pool.instance_type, pool.purchase) if counts else None
        # A volume from a snapshot has the snapshot's size, unless the stack file sets one.
        data = pool.data_volume_gib or sizes.get(pool.data_snapshot_id or "", 0)
        gib = pool.root_volume_gib + data
        add(pool_key(index, "maxNodes"), pool.max_nodes, pool.instance_type, quota, pool.vcpus, gib)
    return uses


def _other_uses(settings: Settings) -> list[Use]:
    uses = []
    network, lustre = settings.network, settings.storage.lustre
    if lustre and not lustre.existing:
        kind = lustre.deployment_type
        key = "trainyard:storage.lustre.capacityGiB"
        uses.append(Use(FILE_SYSTEMS[kind], key, lustre.capacity_gib, f"its {kind} file system"))
    if network.existing is None and settings.cluster.existing is None:
        uses.append(Use(VPCS, "trainyard:network", 1, "its VPC"))
        if not network.private:
            nats = len(network.zones) if network.nat_per_zone else 1
            what = f"{nats} NAT gateway{'s' if nats > 1 else ''}"
            uses.append(Use(ELASTIC_IPS, "trainyard:network.natPerZone", nats, what))
            uses.append(Use(GATEWAYS, "trainyard:network", 1, "its internet gateway"))
    if settings.cluster.existing is None:
        uses.append(Use(CLUSTERS, "trainyard:cluster.name", 1, settings.cluster.name))
    return uses


def quota_value(aws: Aws, quota: Quota) -> float | None:
    """Return the account's value of a quota, or else AWS's default; None for an unknown quota."""
    code: dict[str, Any] = {"ServiceCode": quota.service, "QuotaCode": quota.code}
    code["missing"] = ("NoSuchResourceException",)
    answer = aws.call("service-quotas", "get_service_quota", **code)
    answer = answer or aws.call("service-quotas", "get_aws_default_service_quota", **code)
    return float(answer["Quota"]["Value"]) if answer else None


def _too_small(uses: Sequence[Use], value: float | None, used: int, zone: str = "") -> list[Finding]:
    """Return a finding if a quota is smaller than all of `uses` and the use by others."""
    quota, need = uses[0].quota, sum(use.amount for use in uses)
    if value is None or need + used <= int(value * quota.scale):
        return []
    limit, desired = int(value * quota.scale), math.ceil((need + used) / quota.scale)
    message = (
        f"{', '.join(use.what for use in uses)} need {need} {quota.unit} of the quota '{quota.name}' ({quota.code}),"
        f" of which {max(0, limit - used)} of {limit} are free{f' in {zone}' if zone else ''}. The quota must be"
        f" {desired}: aws service-quotas request-service-quota-increase --service-code {quota.service}"
        f" --quota-code {quota.code} --desired-value {desired}"
    )
    return [Finding(" and ".join(dict.fromkeys(use.key for use in uses)), message)]


def _used(settings: Settings, aws: Aws, quota: Quota) -> int:
    """Return the use of a quota by others than this stack."""
    if quota == CLUSTERS:
        return sum(name != settings.cluster.name for name in aws.items("eks", "list_clusters", "clusters"))
    if quota == VOLUMES:
        found = [
            each for each in aws.items("ec2", "describe_volumes", "Volumes") if each["VolumeType"] == "gp3"
        ]
        size = "Size"
    elif quota in FILE_SYSTEMS.values():
        systems = aws.items("fsx", "describe_file_systems", "FileSystems")
        found = [
            each
            for each in systems
            if each["FileSystemType"] == "LUSTRE"
            and FILE_SYSTEMS.get(each["LustreConfiguration"].get("DeploymentType")) == quota
        ]
        size = "StorageCapacity"
    else:
        size = ""
        if quota == ELASTIC_IPS:
            found = aws.items("ec2", "describe_addresses", "Addresses")
        elif quota == VPCS:
            found = aws.items("ec2", "describe_vpcs", "Vpcs")
        else:
            found = aws.items("ec2", "describe_internet_gateways", "InternetGateways")
    return sum(int(each.get(size, 1)) for each in found if not has(tags_of(each), own_tags(settings)))


def _used_vcpus(settings: Settings, aws: Aws) -> Counter[Quota | None]:
    """Return the vCPUs that instances of others and unused capacity reservations count towards each quota."""
    counts: list[tuple[str, str, int]] = []
    for each in instances(aws, RUNNING):
        lifecycle = each.get("InstanceLifecycle") or "on-demand"
        if lifecycle != "capacity-block" and not has(tags_of(each), own_tags(settings)):
            counts.append((each["InstanceType"], lifecycle, 1))
    active = [filter_by("state", "active")]
    for each in aws.items("ec2", "describe_capacity_reservations", "CapacityReservations", Filters=active):
        if (each.get("ReservationType") or "default") == "default":
            counts.append((each["InstanceType"], "on-demand", int(each["AvailableInstanceCount"])))
    types = sorted({name for name, _, _ in counts})
    by_type = [filter_by("instance-type", *types)]
    found = aws.items("ec2", "describe_instance_types", "InstanceTypes", Filters=by_type) if types else []
    vcpus = {each["InstanceType"]: int(each["VCpuInfo"]["DefaultVCpus"]) for each in found}
    used: Counter[Quota | None] = Counter()
    for name, purchase, count in counts:
        used[quota_of(name, purchase)] += count * vcpus.get(name, 0)
    return used


def check_interfaces(settings: Settings, aws: Aws) -> list[Finding]:
    """Check the quota for network interfaces in each zone, for the system nodes and all pools.

    The few interfaces of the control plane, NAT gateways, endpoints and file systems are not counted in advance.
    """
    cluster, by_zone = settings.cluster, defaultdict[str, list[Use]](list)
    if cluster.existing is None:
        facts = instance_types.TYPES[cluster.system_nodes.instance_type]
        network = eks.NodeNetwork(
            interfaces=facts.interfaces, addresses=facts.addresses, pods=eks.SYSTEM_PODS
        )
        # EKS spreads the system nodes evenly over the zones.
        nodes = -(-cluster.system_nodes.count // len(settings.network.zones)) + eks.SPARE_IN_A_ZONE
        for zone in settings.network.zones:
            amount = nodes * network.network_interfaces
            by_zone[zone].append(Use(INTERFACES, SYSTEM_KEY, amount, f"{nodes} {facts.name}"))
    for index, pool in enumerate(settings.pools):
        each = pool.network_interfaces(own_cni=cluster.existing is None)
        what = f"{pool.max_nodes} {pool.instance_type} with {each} each"
        use = Use(INTERFACES, pool_key(index, "maxNodes"), pool.max_nodes * each, what)
        by_zone[pool.zone].append(use)
    value, used = quota_value(aws, INTERFACES), _used_interfaces(settings, aws)
    return [
        finding for zone in sorted(by_zone) for finding in _too_small(by_zone[zone], value, used[zone], zone)
    ]


def _used_interfaces(settings: Settings, aws: Aws) -> Counter[str]:
    """Return the number of interfaces in each zone that do not belong to this stack or its instances."""
    tags = own_tags(settings)
    own = {each["InstanceId"] for each in instances(aws, *by_tags(tags))}
    return Counter(
        each["AvailabilityZone"]
        for each in aws.items("ec2", "describe_network_interfaces", "NetworkInterfaces")
        if (each.get("Attachment") or {}).get("InstanceId") not in own
        and not has(tags_of(each, key="TagSet"), tags)
    )
