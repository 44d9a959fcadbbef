"""Check instance types, capacity reservations and placement groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from components.documents.pool import CAPACITY_BLOCK, ODCR, Pool, taken_back_seconds
from infra.settings import Settings
from trainyard.preflight.aws import RUNNING, Aws, by_tags, filter_by, instances
from trainyard.preflight.findings import WARNING, Finding, own_tags, pool_key

Reservation = Mapping[str, Any]
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservation.html
USABLE_STATES: Final = ("active", "scheduled")
PLATFORM: Final = "Linux/UNIX"
NO_RESERVATION: Final = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")


def check_instance_types(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that each pool's zone offers its instance type, and all zones that of the system nodes."""
    cluster = settings.cluster
    types = {pool.instance_type for pool in settings.pools}
    types |= {cluster.system_nodes.instance_type} if cluster.existing is None else set()
    offers = aws.items(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[filter_by("instance-type", *sorted(types))],
    )
    zones = {
        name: {each["Location"] for each in offers if each["InstanceType"] == name} for name in sorted(types)
    }
    found = []
    for index, pool in enumerate(settings.pools):
        offered = zones[pool.instance_type]
        if pool.zone not in offered:
            action = (
                f"It must be in {' or '.join(sorted(offered))}"
                if offered
                else f"No zone of {settings.region} offers it. Use another type or region"
            )
            message = f"'{pool.instance_type}' is not offered in {pool.zone}. {action}"
            found.append(Finding(pool_key(index, "instanceType"), message))
    if cluster.existing is None:
        name = cluster.system_nodes.instance_type
        without = [zone for zone in settings.network.zones if zone not in zones[name]]
        if without:
            message = (
                f"'{name}' is not offered in {', '.join(without)}. It must be a type that all zones offer"
            )
            found.append(Finding("trainyard:cluster.systemNodes.instanceType", message))
    return found


def check_reservations(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that reservations exist, fit their pool, and have enough free instances for all of their pools.

    A future start is only a warning if the stack file is correct. Pools that name the same reservation share its
    instances.
    """
    found = _reservations(settings, aws)
    # Instances that this stack runs in each reservation.
    own = Counter(
        each.get("CapacityReservationId")
        for each in (instances(aws, RUNNING, *by_tags(own_tags(settings))) if found else [])
    )
    findings: list[Finding] = []
    shareable: list[tuple[str, Pool]] = []
    for index, pool in enumerate(settings.pools):
        existing = []
        for place, identity in enumerate(pool.capacity_reservation_ids):
            key = pool_key(index, f"capacityReservationIds[{place}]")
            reservation = found[identity]
            if reservation is None:
                message = f"'{identity}' does not exist in {settings.region}. It must be a reservation of this account"
                findings.append(Finding(key, f"{message} or one that is shared with it"))
                continue
            existing.append(reservation)
            findings += [Finding(key, each) for each in _reservation_problems(pool, reservation, aws.now)]
            findings += _check_group(index, pool, reservation)
        if len(existing) < len(pool.capacity_reservation_ids):
            continue
        findings += _check_start(index, pool, existing, aws.now)
        findings += _check_end(index, pool, existing, aws.now)
        usable = existing and all(_is_usable(pool, each, aws.now) for each in existing)
        if usable and not pool.on_demand_fallback:
            key = pool_key(index, "maxNodes")
            shareable.append((key, pool))
            free = sum(_free(each, own) for each in existing)
            if pool.max_nodes > free:
                total = sum(int(each["TotalInstanceCount"]) for each in existing)
                message = (
                    f"{pool.max_nodes} is more than the reservations have free ({free} of {total}). It must be at most"
                    f" {free}, or onDemandFallback: true"
                )
                findings.append(Finding(key, message))
    return findings + _check_sharing(shareable, found, own)


def _reservations(settings: Settings, aws: Aws) -> dict[str, Reservation | None]:
    """Return each reservation, None if it does not exist. One call each: EC2 refuses a call with an unknown id."""
    result: dict[str, Reservation | None] = {}
    for identity in sorted({each for pool in settings.pools for each in pool.capacity_reservation_ids}):
        found = aws.items(
            "ec2",
            "describe_capacity_reservations",
            "CapacityReservations",
            missing=NO_RESERVATION,
            CapacityReservationIds=[identity],
        )
        result[identity] = found[0] if found else None
    return result


def _type(reservation: Reservation) -> str:
    """Return the value of `reservationType`."""
    kind = reservation.get("ReservationType") or "default"
    return ODCR if kind == "default" else str(kind)


def _has_ended(reservation: Reservation, now: datetime) -> bool:
    return reservation.get("EndDate") is not None and reservation["EndDate"] <= now


def _is_usable(pool: Pool, reservation: Reservation, now: datetime) -> bool:
    """Return whether the pool can use a reservation. The number of free instances of another one does not matter."""
    place = (reservation["AvailabilityZone"], reservation["InstanceType"])
    is_usable = reservation["State"] in USABLE_STATES and not _has_ended(reservation, now)
    return is_usable and place == (pool.zone, pool.instance_type)


def _reservation_problems(pool: Pool, found: Reservation, now: datetime) -> Iterator[str]:
    name, state, end = f"'{found['CapacityReservationId']}'", found["State"], found.get("EndDate")
    drain = timedelta(seconds=taken_back_seconds(found["InstanceType"]))
    if _has_ended(found, now):
        yield f"{name} ended at {_time(end)}. It must be one that has not ended"
    elif state not in USABLE_STATES:
        yield f"{name} is {state}. It must be active or scheduled"
    elif end is not None and _type(found) == CAPACITY_BLOCK and end - drain <= now:
        yield (
            f"{name} ends at {_time(end)}, and Karpenter drains its nodes {drain // timedelta(minutes=1)} minutes"
            " before. It must be one that lasts longer"
        )
    tenancy = found.get("Tenancy") or "default"
    if found["AvailabilityZone"] != pool.zone:
        yield f"{name} is in {found['AvailabilityZone']}. It must be in {pool.zone}, the pool's zone"
    if found["InstanceType"] != pool.instance_type:
        yield f"{name} is for {found['InstanceType']}. It must be for {pool.instance_type}"
    if found["InstanceMatchCriteria"] != "targeted":
        yield (
            f"{name} is {found['InstanceMatchCriteria']}, so any instance of its type in the zone uses it. Its match"
            " criteria must be targeted"
        )
    if _type(found) != pool.reservation_type:
        yield (
            f"{name} has the type {_type(found)}, but reservationType is {pool.reservation_type}. Both must be the same"
        )
    if found["InstancePlatform"] != PLATFORM:
        yield f"{name} is for {found['InstancePlatform']}. It must be for {PLATFORM}"
    if tenancy != "default":
        yield f"{name} has {tenancy} tenancy. It must have default tenancy"


def _check_start(index: int, pool: Pool, found: Sequence[Reservation], now: datetime) -> list[Finding]:
    """Check that `reservationBegins` is the first start of the pool's reservations. A past start may be omitted.

    The launcher can't read the start of a capacity block. It refuses a run whose wait ends before the start.
    """
    current = [each for each in found if not _has_ended(each, now)]
    starts = sorted(
        (each["StartDate"], each["CapacityReservationId"]) for each in current if each.get("StartDate")
    )
    if not starts or len(starts) < len(current):
        return []
    key, setting, (first, identity) = (
        pool_key(index, "reservationBegins"),
        _parse(pool.reservation_begins),
        starts[0],
    )
    if first <= now:
        if setting is None or setting <= now:
            return []
        message = f"is {_time(setting)}, but '{identity}' started at {_time(first)}. It must be omitted"
        return [Finding(key, message)]
    of = f", the first of {len(starts)} to start" if len(starts) > 1 else ""
    is_block = any(_type(each) == CAPACITY_BLOCK for each in current)
    if setting == first or (setting is None and not is_block):
        nodes = "only on-demand nodes" if pool.on_demand_fallback else "no nodes"
        message = f"'{identity}' starts at {_time(first)}{of}. Until then the pool has {nodes}"
        return [Finding(key, message, WARNING)]
    state = f"is {_time(setting)}" if setting else "is missing"
    return [Finding(key, f"{state}. It must be {_time(first)}, the start of '{identity}'{of}")]


def _check_end(index: int, pool: Pool, found: Sequence[Reservation], now: datetime) -> list[Finding]:
    """Check that `reservationEnds` is the first end of the pool's reservations. A capacity block requires it.

    A run may use instances of all reservations, so it must end before the first one ends.
    """
    current = [each for each in found if not _has_ended(each, now)]
    setting = _parse(pool.reservation_ends)
    ends = sorted((each["EndDate"], each["CapacityReservationId"]) for each in current if each.get("EndDate"))
    is_required = any(each.get("EndDate") and _type(each) == CAPACITY_BLOCK for each in current)
    if not current or setting == (ends[0][0] if ends else None) or (setting is None and not is_required):
        return []
    action = "omitted: none of the pool's reservations ends"
    if ends:
        of = f", the first of {len(ends)} to end" if len(ends) > 1 else ""
        action = f"{_time(ends[0][0])}, the end of '{ends[0][1]}'{of}"
    state = f"is {_time(setting)}" if setting else "is missing"
    return [Finding(pool_key(index, "reservationEnds"), f"{state}. It must be {action}")]


def _check_group(index: int, pool: Pool, found: Reservation) -> list[Finding]:
    """Check that `placementGroupOfReservation` is the reservation's group. EC2 uses the reservation only there.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html. Capacity blocks have no such group.
    """
    group = (found.get("PlacementGroupArn") or "").rpartition("/")[2] or None
    setting, name = pool.placement_group_of_reservation, found["CapacityReservationId"]
    if _type(found) == CAPACITY_BLOCK or setting == group:
        return []
    state = f"'{setting}' is not the placement group of '{name}'" if setting else "is missing"
    action = f"It and placementGroup must be '{group}', the group of '{name}'"
    if group is None:
        action = "The reservation has none. It and placementGroup must be omitted"
    return [Finding(pool_key(index, "placementGroupOfReservation"), f"{state}. {action}")]


def _check_sharing(
    pools: Sequence[tuple[str, Pool]], found: Mapping[str, Reservation | None], own: Counter[str | None]
) -> list[Finding]:
    """Check that reservations have enough free instances for all pools that share them."""
    groups: list[list[tuple[str, Pool]]] = []
    for entry in pools:
        ids = set(entry[1].capacity_reservation_ids)
        linked = [
            group for group in groups if any(ids & set(each.capacity_reservation_ids) for _, each in group)
        ]
        groups = [group for group in groups if group not in linked]
        groups.append([*(each for group in linked for each in group), entry])
    findings = []
    for group in groups:
        names = dict.fromkeys(name for _, pool in group for name in pool.capacity_reservation_ids)
        free = sum(_free(each, own) for each in map(found.get, names) if each)
        need = sum(pool.max_nodes for _, pool in group)
        if len(group) > 1 and need > free:
            shared = ", ".join(f"'{name}'" for name in names)
            message = (
                f"{need} together is more than {shared}, which these pools share, has free ({free}). They must be at"
                f" most {free} together, or onDemandFallback: true"
            )
            findings.append(Finding(" and ".join(key for key, _ in group), message))
    return findings


def _free(reservation: Reservation, own: Counter[str | None]) -> int:
    """Return the number of instances that the stack can use. A scheduled reservation shows none as available."""
    if reservation["State"] == "scheduled":
        return int(reservation["TotalInstanceCount"])
    return int(reservation["AvailableInstanceCount"]) + own[reservation["CapacityReservationId"]]


def _parse(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _time(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if time else ""


def check_placement_groups(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that a pool's placement group is available, has strategy cluster and no instances in another zone.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html, "can't span multiple
    Availability Zones".
    """
    names = {
        index: pool.placement_group
        for index, pool in enumerate(settings.pools)
        if pool.placement_group and not pool.makes_placement_group
    }
    if not names:
        return []
    values = sorted(set(names.values()))
    by_name = [filter_by("group-name", *values)]
    groups = {
        each["GroupName"]: each
        for each in aws.items("ec2", "describe_placement_groups", "PlacementGroups", Filters=by_name)
    }
    placements = [
        each["Placement"] for each in instances(aws, RUNNING, filter_by("placement-group-name", *values))
    ]
    findings = []
    for index, name in names.items():
        group, zone = groups.get(name), settings.pools[index].zone
        others = {each["AvailabilityZone"] for each in placements if each.get("GroupName") == name} - {zone}
        if group is None:
            message = (
                f"'{name}' does not exist in {settings.region}. It must be a placement group of this account"
            )
        elif group["State"] != "available":
            message = f"'{name}' is {group['State']}. It must be available"
        elif group["Strategy"] != "cluster":
            message = f"'{name}' has the strategy {group['Strategy']}. It must be cluster"
        elif others:
            message = (
                f"'{name}' has instances in {', '.join(sorted(others))}, and a group with the strategy cluster is in"
                f" one zone. It must be one without instances, or with instances in {zone}"
            )
        else:
            continue
        findings.append(Finding(pool_key(index, "placementGroup"), message))
    return findings
