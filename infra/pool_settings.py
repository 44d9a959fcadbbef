"""Reading the pools of a stack file; part of `infra.settings`."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from components.documents import efa
from components.documents.pool import (
    CAPACITY_BLOCK,
    ODCR,
    ON_DEMAND,
    PURCHASES,
    RESERVATION_TYPES,
    RESERVED,
    Pool,
)
from infra import accelerators, formats
from infra.model import PoolEntry
from infra.network_settings import zone_of, zones_of
from infra.reading import Problems, Section, entries, hint, shown, twice

PATH = "trainyard:pools"
# How long a capacity block is, and how long before its start it is bought
# (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-purchase.html). One that is extended gets as much
# again, from at most eight weeks before its end on, so that the bound is the same (capacity-blocks-extend.html).
LONGEST_BLOCK = timedelta(days=182)
LATEST_BLOCK_START = timedelta(weeks=8)


def known_type(section: Section, key: str, name: str) -> accelerators.InstanceType | None:
    """The facts of the type that a key names; an unknown one is noted with the nearest names."""
    if key in section.wrong:
        return None
    found = accelerators.TYPES.get(name)
    if found is None:
        near = accelerators.nearest(name)
        help_text = f"; did you mean {' or '.join(near)}?" if near else "; infra/accelerators.py lists them"
        section.reject(key, f"'{name}' is not a known instance type{help_text}")
    return found


def read_pools(
    problems: Problems, value: object, region: str, zones: tuple[str, ...], cluster: str, now: datetime
) -> list[PoolEntry]:
    """Return the pools in the stack file's order, also those with mistakes.

    Args:
        problems: Collects the mistakes.
        value: The section.
        region: The stack's region, "" if it is invalid.
        zones: The network's zones.
        cluster: The cluster's name, the prefix of the stack's placement groups.
        now: An aware time; a capacity block that ended before it is refused.
    """
    sections = entries(problems, PATH, value)
    if value is None or value == []:
        problems.add(
            PATH, "is missing; it must list at least one pool with name, instanceType, zone, maxNodes"
        )
    pools: list[PoolEntry] = []
    names: set[str] = set()
    for section in sections:
        pool = _pool(section, region, zones, cluster, now)
        if pool.name and pool.name in names:
            section.reject("name", f"'{pool.name}' names another pool, too; each pool needs its own name")
        names.add(pool.name)
        pools.append(PoolEntry(pool=pool, wrong=frozenset(section.wrong)))
    _one_place_per_reservation(problems, pools)
    _one_zone_per_placement_group(problems, pools)
    return pools


def _pool(section: Section, region: str, zones: tuple[str, ...], cluster: str, now: datetime) -> Pool:
    name = section.text("name", pattern=formats.DNS_LABEL, wanted=formats.DNS_LABEL_WANTED)
    type_name = section.text("instanceType")
    known = known_type(section, "instanceType", type_name)
    facts = known or accelerators.InstanceType(name=type_name, vcpus=2, memory_gib=4)
    zone = _zone(section, region, zones)
    max_nodes = section.integer("maxNodes", least=1, most=1000, unit="nodes")
    warm = section.integer("warmNodes", 0, least=0, most=1000, unit="nodes")
    if not {"maxNodes", "warmNodes"} & section.wrong and warm > max_nodes:
        section.reject("warmNodes", f"{warm} is more than maxNodes; it must be at most {max_nodes}")
    policy = _efa_policy(section, known)
    pool = Pool(
        name=name,
        instance_type=type_name,
        zone=zone,
        max_nodes=max_nodes,
        purchase=section.choice("purchase", PURCHASES, ON_DEMAND),
        capacity_reservation_ids=section.texts(
            "capacityReservationIds", pattern=formats.id_pattern("cr"), wanted=formats.id_wanted("cr")
        ),
        root_volume_gib=section.integer("rootVolumeGiB", 200, least=20, most=16384, unit="GiB"),
        idle_seconds=section.integer("idleSeconds", 600, least=30, unit="seconds"),
        resource=facts.resource,
        accelerators=facts.accelerators,
        vcpus=facts.vcpus,
        memory_gib=facts.memory_gib,
        nvme_gb=facts.nvme_gb,
        efa=facts.efa if policy != efa.NONE else 0,
        efa_policy=policy,
        cards_per_ip_group=facts.cards_per_ip_group,
        first_efa_card=facts.first_efa_card,
        warm_nodes=warm,
        interfaces=facts.interfaces,
        addresses_per_interface=facts.addresses,
    )
    pool = _placement(section, _reservation(section, _data_volume(section, pool), now), cluster)
    section.done()
    return pool


def _zone(section: Section, region: str, zones: tuple[str, ...]) -> str:
    zone = section.text("zone", wanted="the name of a zone")
    usable = zones_of(region, zones)
    if "zone" not in section.wrong and region:
        if not zone_of(region, zone):
            letter = zone[-1] if re.fullmatch(formats.ZONE, zone) else "a"
            right = f"one of {', '.join(usable)}" if usable else f"a zone such as {region}{letter}"
            section.reject("zone", f"'{zone}' is not in {region}; it must be {right}")
        elif usable and zone not in usable:
            section.reject("zone", f"'{zone}' has no subnets here; it must be one of {', '.join(usable)}")
    return zone


def _efa_policy(section: Section, facts: accelerators.InstanceType | None) -> str:
    policy = section.choice("efa", efa.POLICIES, efa.IP if facts and facts.efa else efa.NONE)
    if facts and policy != efa.NONE and not facts.efa and "efa" not in section.wrong:
        family = facts.name.partition(".")[0]
        others = [t.name for t in accelerators.TYPES.values() if t.efa and t.name.startswith(f"{family}.")]
        help_text = f", or instanceType one of {', '.join(others)}" if others else ""
        section.reject("efa", f"'{policy}' needs EFA and {facts.name} has none; it must be none{help_text}")
    return efa.NONE if "efa" in section.wrong else policy


def _data_volume(section: Section, pool: Pool) -> Pool:
    snapshot = section.optional_text(
        "dataSnapshotId", pattern=formats.id_pattern("snap"), wanted=formats.id_wanted("snap")
    )
    size = section.optional_integer("dataVolumeGiB", least=1, most=16384, unit="GiB")
    if size is not None and snapshot is None and not {"dataSnapshotId", "dataVolumeGiB"} & section.wrong:
        section.reject(
            "dataVolumeGiB", f"{size} is given without dataSnapshotId; it is the disk of a snapshot"
        )
    return replace(pool, data_snapshot_id=snapshot, data_volume_gib=size)


def _reservation(section: Section, pool: Pool, now: datetime) -> Pool:
    reserved = pool.purchase == RESERVED
    ids = pool.capacity_reservation_ids
    kind = section.choice("reservationType", RESERVATION_TYPES, ODCR)
    wanted = "a time such as 2027-01-31T11:30:00Z, in quotes"
    begins = section.optional_text("reservationBegins", wanted=wanted)
    ends = section.optional_text("reservationEnds", wanted=wanted)
    fallback = section.boolean("onDemandFallback", False)
    if "purchase" in section.wrong:
        return pool
    if reserved != bool(ids) and "capacityReservationIds" not in section.wrong:
        section.reject(
            "capacityReservationIds",
            "is missing; purchase: reserved needs the ids of the reservations"
            if reserved
            else f"is given, but purchase is {pool.purchase}; it must be reserved",
        )
    if again := twice(ids):
        section.reject("capacityReservationIds", f"names '{again[0]}' twice; each must be another one")
    if not reserved:
        for key in ("reservationType", "reservationBegins", "reservationEnds", "onDemandFallback"):
            if section.has(key):
                section.reject(
                    key, f"is given, but purchase is {pool.purchase}; it is for purchase: reserved"
                )
    begin = _begin(section, begins, kind, now)
    end = _time(section, "reservationEnds", ends)
    if begin and end and begin >= end:
        section.reject(
            "reservationBegins",
            f"'{begins}' is not before reservationEnds ('{ends}'); it must be when the reservation begins",
        )
    if kind == CAPACITY_BLOCK and end is not None and end > now + LONGEST_BLOCK + LATEST_BLOCK_START:
        section.reject(
            "reservationEnds",
            f"'{ends}' is too far: a capacity block begins at most {LATEST_BLOCK_START.days // 7} weeks from now and"
            f" lasts at most {LONGEST_BLOCK.days} days, so that none ends after"
            f" {now + LONGEST_BLOCK + LATEST_BLOCK_START:%Y-%m-%d}; it must be the end of the block that was bought",
        )
    if end is not None and end <= now and not section.problems.takes_ended:
        section.reject(
            "reservationEnds",
            f"'{ends}' is past; it must be in the future, of a reservation that has not ended, or be left out"
            " where `up` is to start no run on it (docs/destroying.md)",
        )
    return replace(
        pool,
        reservation_type=kind,
        reservation_begins=begin.isoformat() if begin else None,
        reservation_ends=end.isoformat() if end else None,
        on_demand_fallback=fallback,
    )


def _begin(section: Section, text: str | None, kind: str, now: datetime) -> datetime | None:
    """When the reservation begins, or began."""
    begin = _time(section, "reservationBegins", text)
    if kind == CAPACITY_BLOCK and begin is not None and begin > now + LATEST_BLOCK_START:
        section.reject(
            "reservationBegins",
            f"'{text}' is too far: a capacity block begins at most {LATEST_BLOCK_START.days // 7} weeks from now, which"
            f" is {now + LATEST_BLOCK_START:%Y-%m-%d}; it must be the begin of the block that was bought",
        )
    return begin


def _time(section: Section, key: str, text: str | None) -> datetime | None:
    """A time with its zone, as RFC 3339 writes it; what is none is told."""
    if text is None or key in section.wrong:
        return None
    try:
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is not None:
            return parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    section.reject(key, f"'{text}' is invalid; it must be a time with its zone, such as 2027-01-31T11:30:00Z")
    return None


def _placement(section: Section, pool: Pool, cluster: str) -> Pool:
    wanted = "true, or the name of an existing placement group"
    group = section.true_or_text("placementGroup", pattern=formats.PLACEMENT_GROUP, wanted=wanted)
    around = section.optional_text(
        "placementGroupOfReservation", pattern=formats.PLACEMENT_GROUP, wanted="a placement group's name"
    )
    if not {"placementGroup", "placementGroupOfReservation", "purchase"} & section.wrong:
        _check_placement(section, pool, group, around)
    return replace(
        pool,
        placement_group=f"{cluster}-{pool.name}" if group is True else group or None,
        makes_placement_group=group is True,
        placement_group_of_reservation=around,
    )


def _check_placement(section: Section, pool: Pool, group: bool | str, around: str | None) -> None:
    """EC2 launches into a reservation only inside of the placement group that the reservation was made in, if any."""
    if pool.purchase != RESERVED:
        if around:
            section.reject(
                "placementGroupOfReservation",
                f"is given, but purchase is {pool.purchase}; it is for purchase: reserved",
            )
        return
    if group and pool.reservation_type == CAPACITY_BLOCK:
        section.reject(
            "placementGroup",
            f"{shown(group)} is not for capacity blocks, which are placed close together; leave it out",
        )
    elif group and group != around:
        section.reject(
            "placementGroup",
            f"{shown(group)} is not the group of the reservation, so that no machine could start;"
            + (
                f" it must be {around}"
                if around
                else " leave it out, or name the reservation's group here and in placementGroupOfReservation"
            ),
        )
    elif around and not group:
        section.reject(
            "placementGroup",
            f"is missing; the reservation lies in the placement group '{around}', so that it must be {around}",
        )


def find_pool(section: Section, pools: list[PoolEntry]) -> PoolEntry | None:
    """Return the pool that a section's `pool` names. Report an unknown name."""
    name = section.text("pool", wanted="the name of a pool")
    found = next((each for each in pools if each.pool.name == name), None)
    names = [each.pool.name for each in pools]
    # A pool with an invalid name may be the right one.
    if found is None and "pool" not in section.wrong and names and all(names):
        section.reject("pool", f"'{name}' is not a pool{hint(name, names)} (pools: {', '.join(names)})")
    return found if name else None


def _one_place_per_reservation(problems: Problems, pools: list[PoolEntry]) -> None:
    """A reservation is of one type in one zone (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations.html)."""
    seen: dict[str, Pool] = {}
    for index, entry in enumerate(pools):
        pool = entry.pool
        if not entry.has("capacityReservationIds", "zone", "instanceType"):
            continue
        for reservation in pool.capacity_reservation_ids:
            first = seen.setdefault(reservation, pool)
            if (first.zone, first.instance_type) != (pool.zone, pool.instance_type):
                problems.add(
                    f"{PATH}[{index}].capacityReservationIds",
                    f"'{reservation}' is of {first.instance_type} in {first.zone} by the pool '{first.name}';"
                    f" it must be of {pool.instance_type} in {pool.zone}",
                )


def _one_zone_per_placement_group(problems: Problems, pools: list[PoolEntry]) -> None:
    """A cluster placement group is in one zone (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html).

    Another strategy the preflight refuses. Two pools of one zone may share one.
    """
    seen: dict[str, Pool] = {}
    for index, entry in enumerate(pools):
        pool = entry.pool
        if pool.placement_group is None or not entry.has("placementGroup", "zone"):
            continue
        first = seen.setdefault(pool.placement_group, pool)
        if first.zone != pool.zone:
            problems.add(
                f"{PATH}[{index}].placementGroup",
                f"'{pool.placement_group}' is in {first.zone} by the pool '{first.name}', and this pool is in"
                f" {pool.zone}; a group is in one zone, so that it must be another one",
            )
