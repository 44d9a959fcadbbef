"""Reading machines, reservations and quotas of an account."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trainyard.preflight import quotas
from trainyard.preflight.account import Account, by_tags, has, tags_of
from trainyard.preflight.capacity import PlacementGroup, Reservation
from trainyard.preflight.wanted import Wanted

NO_RESERVATION = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
RUNNING = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
SPOT_ROLE_PATH = "/aws-service-role/spot.amazonaws.com/"


def offerings(account: Account, wanted: Wanted) -> dict[str, frozenset[str]]:
    """The zones in which each wanted type is offered."""
    types = {pool.instance_type for pool in wanted.pools} | (
        {wanted.system.instance_type} if wanted.system else set()
    )
    found = account.items(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": sorted(types)}],
    )
    return {name: frozenset(o["Location"] for o in found if o["InstanceType"] == name) for name in types}


def reservations(account: Account, wanted: Wanted) -> dict[str, Reservation | None]:
    """Each wanted reservation, None where there is none. One call each: an unknown id spoils the whole call."""
    ids = sorted({identity for pool in wanted.pools for identity in pool.reservation_ids})
    ours = _own_machines(account, wanted) if ids else Counter()
    result: dict[str, Reservation | None] = {}
    for identity in ids:
        found = account.items(
            "ec2",
            "describe_capacity_reservations",
            "CapacityReservations",
            missing=NO_RESERVATION,
            CapacityReservationIds=[identity],
        )
        result[identity] = _reservation(found[0], ours[identity]) if found else None
    return result


def _own_machines(account: Account, wanted: Wanted) -> Counter[str]:
    """How many of this stack's own machines run in each reservation."""
    machines = instances(account, [*RUNNING, *by_tags(wanted.tags)])
    return Counter(m["CapacityReservationId"] for m in machines if m.get("CapacityReservationId"))


def instances(account: Account, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = account.items("ec2", "describe_instances", "Reservations", Filters=filters)
    return [instance for entry in found for instance in entry["Instances"]]


def _reservation(found: dict[str, Any], ours: int) -> Reservation:
    group = found.get("PlacementGroupArn")
    return Reservation(
        reservation_id=found["CapacityReservationId"],
        state=found["State"],
        zone=found["AvailabilityZone"],
        instance_type=found["InstanceType"],
        total=int(found["TotalInstanceCount"]),
        free=int(found["AvailableInstanceCount"]),
        match=found["InstanceMatchCriteria"],
        kind=found.get("ReservationType") or "default",
        platform=found["InstancePlatform"],
        tenancy=found.get("Tenancy") or "default",
        begins=found.get("StartDate"),
        ends=found.get("EndDate"),
        group=group.rpartition("/")[2] if group else None,
        ours=ours,
    )


def placement_groups(account: Account, wanted: Wanted) -> dict[str, PlacementGroup]:
    """Those of the wanted placement groups that exist, by name."""
    given = sorted({pool.placement_group for pool in wanted.pools if pool.placement_group})
    if not given:
        return {}
    found = account.items(
        "ec2",
        "describe_placement_groups",
        "PlacementGroups",
        Filters=[{"Name": "group-name", "Values": given}],
    )
    inside = instances(account, [*RUNNING, {"Name": "placement-group-name", "Values": given}])
    return {
        g["GroupName"]: PlacementGroup(
            name=g["GroupName"],
            strategy=g["Strategy"],
            state=g["State"],
            zones=frozenset(
                machine["Placement"]["AvailabilityZone"]
                for machine in inside
                if machine["Placement"].get("GroupName") == g["GroupName"]
            ),
        )
        for g in found
    }


def spot_role(account: Account) -> bool:
    """Whether the service-linked role for spot machines exists."""
    roles = account.items("iam", "list_roles", "Roles", PathPrefix=SPOT_ROLE_PATH)
    return any(role["Path"] == SPOT_ROLE_PATH for role in roles)


def limits(account: Account, wanted: Wanted) -> dict[str, float | None]:
    """The account's value of each quota that the stack uses; None for one that Service Quotas does not know."""
    return {q.code: limit(account, q) for q in dict.fromkeys(use.quota for use in quotas.uses(wanted))}


def limit(account: Account, quota: quotas.Quota) -> float | None:
    """The account's value of one quota; None where Service Quotas does not know it."""
    named = {"ServiceCode": quota.service, "QuotaCode": quota.code}
    # A quota that was never changed has no value of the account's own, and then the default holds.
    for method in ("get_service_quota", "get_aws_default_service_quota"):
        answer = account.call("service-quotas", method, missing=("NoSuchResourceException",), **named)
        if answer is not None:
            return float(answer["Quota"]["Value"])
    return None


def used(account: Account, wanted: Wanted) -> dict[str, int]:
    """What others than this stack use of each quota: vCPUs of machines and of unused reservations, and counts."""
    codes = {use.quota.code for use in quotas.uses(wanted)}
    result = _used_vcpus(account, wanted)
    counted = (
        (quotas.ELASTIC_IPS, "describe_addresses", "Addresses"),
        (quotas.VPCS, "describe_vpcs", "Vpcs"),
        (quotas.GATEWAYS, "describe_internet_gateways", "InternetGateways"),
    )
    for quota, method, key in counted:
        if quota.code in codes:
            found = account.items("ec2", method, key)
            result[quota.code] = sum(not has(tags_of(each), wanted.tags) for each in found)
    if quotas.DISKS.code in codes:
        disks = account.items("ec2", "describe_volumes", "Volumes")
        result[quotas.DISKS.code] = sum(
            int(each["Size"])
            for each in disks
            if each.get("VolumeType") == "gp3" and not has(tags_of(each), wanted.tags)
        )
    if wanted.new_lustre:
        quota = quotas.FILE_SYSTEMS[wanted.new_lustre[0]]
        result[quota.code] = sum(
            int(each["StorageCapacity"])
            for each in account.items("fsx", "describe_file_systems", "FileSystems")
            if each["FileSystemType"] == "LUSTRE"
            and quotas.FILE_SYSTEMS.get(each["LustreConfiguration"].get("DeploymentType")) == quota
            and not has(tags_of(each), wanted.tags)
        )
    if quotas.CLUSTERS.code in codes:
        names: list[Any] = account.items("eks", "list_clusters", "clusters")
        result[quotas.CLUSTERS.code] = sum(str(name) != wanted.cluster for name in names)
    return result


def _used_vcpus(account: Account, wanted: Wanted) -> Counter[str]:
    machines = [m for m in instances(account, RUNNING) if not has(tags_of(m), wanted.tags)]
    reserved = account.items(
        "ec2",
        "describe_capacity_reservations",
        "CapacityReservations",
        Filters=[{"Name": "state", "Values": ["active"]}],
    )
    unused = [r for r in reserved if (r.get("ReservationType") or "default") == "default"]
    types = {m["InstanceType"] for m in machines} | {r["InstanceType"] for r in unused}
    vcpus = _vcpus(account, sorted(types))
    result: Counter[str] = Counter()
    for machine in machines:
        lifecycle = machine.get("InstanceLifecycle")
        quota = quotas.quota_of(machine["InstanceType"], "spot" if lifecycle == "spot" else "on-demand")
        if quota and lifecycle != "capacity-block":
            result[quota.code] += vcpus.get(machine["InstanceType"], 0)
    for reservation in unused:
        quota = quotas.quota_of(reservation["InstanceType"], "on-demand")
        if quota:
            result[quota.code] += vcpus.get(reservation["InstanceType"], 0) * int(
                reservation["AvailableInstanceCount"]
            )
    return result


def _vcpus(account: Account, types: list[str]) -> dict[str, int]:
    if not types:
        return {}
    found = account.items(
        "ec2",
        "describe_instance_types",
        "InstanceTypes",
        Filters=[{"Name": "instance-type", "Values": types}],
    )
    return {t["InstanceType"]: int(t["VCpuInfo"]["DefaultVCpus"]) for t in found}
