"""Section `pools` of a stack file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from components.documents import efa as efa_layouts
from components.documents import instance_types
from components.documents.pool import (
    CAPACITY_BLOCK,
    ODCR,
    ON_DEMAND,
    PURCHASES,
    RESERVATION_TYPES,
    RESERVED,
    Pool,
)
from infra.settings.fields import (
    IN_PLACE,
    NEW_NODES,
    REQUIRED,
    AsTuple,
    Choice,
    Model,
    Text,
    TrueOrText,
    WholeNumber,
    hint,
    setting,
    shown,
)
from infra.settings.formats import PLACEMENT_GROUP, ZONE, DnsLabel, Line, ZoneName, ec2_id
from infra.settings.network import is_zone_of, zones_of
from infra.settings.problems import Problems, Section, twice

PATH = "trainyard:pools"
# The maximum length of a capacity block, and the maximum time from its purchase to its start
# (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-purchase.html). An
# extension has the same maximum and is bought at most eight weeks before the old end, so the bound is the same
# (capacity-blocks-extend.html).
LONGEST_BLOCK = timedelta(days=182)
LATEST_BLOCK_START = timedelta(weeks=8)
ONLY_RESERVED = ("reservationType", "reservationBegins", "reservationEnds", "onDemandFallback")


class _Time(Text):
    """A time with its zone (RFC 3339)."""

    def check(self, value: Any) -> Any:
        text = super().check(value)
        try:
            if datetime.fromisoformat(text).tzinfo is not None:
                return utc(text) and text
        except (ValueError, OverflowError):
            pass
        raise ValueError(f"'{text}' is invalid; it must be {self.must_be}")


ReservationIds = Annotated[tuple[Annotated[str, ec2_id("cr")], ...], AsTuple]
Time = Annotated[str, _Time("a time with its zone, such as 2027-01-31T11:30:00Z, in quotes")]
PlacementGroup = Annotated[
    bool | str, TrueOrText("true, or the name of an existing placement group", PLACEMENT_GROUP)
]
PoolName = Annotated[str, Text("the name of a pool")]


class PoolSection(Model):
    """An entry of `pools`."""

    name: DnsLabel = setting(REQUIRED, "replaces the pool", example="large")
    """The name of the pool, its NodePool and its EC2NodeClass."""
    instance_type: Line = setting(REQUIRED, NEW_NODES, example="p4d.24xlarge")
    """The instance type of all its nodes."""
    zone: ZoneName = setting(REQUIRED, NEW_NODES, example="us-west-2b")
    """The zone of all its nodes, its reservations and the file system."""
    max_nodes: WholeNumber = setting(REQUIRED, IN_PLACE, example=16, unit="nodes", ge=1, le=1000)
    """The maximum number of nodes, as a limit of GPUs or cores in the NodePool."""
    warm_nodes: WholeNumber = setting(0, IN_PLACE, example=2, unit="nodes", ge=0, le=1000)
    """Nodes that stay without a job, so that the next job starts immediately. They cost the same. They get a newer
    AMI after their NodeClaims were deleted.
    """
    efa: Annotated[str, Choice(efa_layouts.POLICIES)] = setting(
        efa_layouts.NONE, NEW_NODES, example="bandwidth", default_text="ip if the type has EFA, else none"
    )
    """EFA interfaces: `ip` uses all of them with the fewest IP addresses, `bandwidth` has more addresses for more IP
    traffic.
    """
    purchase: Annotated[str, Choice(PURCHASES)] = setting(ON_DEMAND, NEW_NODES, example="on-demand")
    """How nodes are purchased. A Spot interruption ends the run on all of its nodes; `up` warns about runs on several
    Spot nodes.
    """
    capacity_reservation_ids: ReservationIds = setting((), NEW_NODES, example=["cr-0123456789abcdef0"])
    """Capacity reservations of the pool, for `purchase: reserved`."""
    root_volume_gib: WholeNumber = setting(
        instance_types.ROOT_VOLUME_GIB, NEW_NODES, example=500, unit="GiB", ge=20, le=16384
    )
    """The root volume of a node. Instance types with local NVMe disks store images and pods there."""
    idle_seconds: WholeNumber = setting(
        instance_types.IDLE_SECONDS, IN_PLACE, example=600, unit="seconds", ge=30
    )
    """Karpenter deletes an empty node after this time. Nodes have a taint (the accelerator's name, or
    `trainyard.dev/pool`), so only pods that tolerate it keep them.
    """
    data_snapshot_id: Annotated[str, ec2_id("snap")] | None = setting(
        None, NEW_NODES, example="snap-0123456789abcdef0"
    )
    """A snapshot of `/var/lib/containerd` with images, so that nodes don't pull them (docs/images.md)."""
    data_volume_gib: WholeNumber | None = setting(
        None, NEW_NODES, example=300, unit="GiB", default_text="the snapshot's size", ge=1, le=16384
    )
    """The volume that is created from the snapshot; at least as large as the snapshot."""
    reservation_type: Annotated[str, Choice(RESERVATION_TYPES)] = setting(ODCR, NEW_NODES, example="odcr")
    """An on-demand capacity reservation (`odcr`) or a capacity block."""
    reservation_begins: Time | None = setting(None, IN_PLACE, example="2026-01-31T11:30:00Z")
    """The start of the reservation (of several: the first start), RFC 3339 in quotes; for a capacity block at most 8
    weeks from now. `make preflight` prints a future start. Until then, a run on a capacity block without
    `onDemandFallback` reports the start. It is refused if its wait ends earlier.
    """
    reservation_ends: Time | None = setting(None, IN_PLACE, example="2030-01-31T11:30:00Z")
    """The end of the reservation (of several: the first end), RFC 3339 in quotes; for a capacity block at most 182
    days and 8 weeks from now. `make preflight` prints it. EC2 terminates the instances of a block 30 minutes earlier
    (UltraServers: 60), and Karpenter drains them 10 minutes before that. The launcher refuses a run that may take
    longer. A run on a block needs this setting.
    """
    on_demand_fallback: bool = setting(False, NEW_NODES, example=False)
    """Launch On-Demand Instances if the reservations are used up."""
    placement_group: PlacementGroup = setting(
        False, "replaces the group of the stack, which must be empty", example=True
    )
    """A cluster placement group in one zone: `true` creates a group, a name is that of an existing group."""
    placement_group_of_reservation: (
        Annotated[str, Text("a placement group's name", PLACEMENT_GROUP)] | None
    ) = setting(None, NEW_NODES, example="theirs")
    """The placement group of the reservations, if any; `placementGroup` must then be its name."""


@dataclass(frozen=True, kw_only=True)
class PoolEntry:
    """A pool of the stack file. `wrong` are the keys with invalid values.

    Other sections are checked against its valid values, so that one error does not hide others.
    """

    pool: Pool
    wrong: frozenset[str]

    @property
    def sized(self) -> Pool | None:
        """Return the pool if its instance type is valid, else None."""
        return None if "instanceType" in self.wrong else self.pool

    @property
    def max_nodes(self) -> int | None:
        """Return the maximum number of nodes if it is valid, else None."""
        return None if "maxNodes" in self.wrong else self.pool.max_nodes

    @property
    def zone(self) -> str | None:
        """Return the zone if it is valid, else None."""
        return None if "zone" in self.wrong else self.pool.zone

    def has(self, *keys: str) -> bool:
        """Return whether the values of these keys are valid."""
        return not self.wrong & set(keys)


def utc(text: str) -> datetime:
    """Return a time of RFC 3339 in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def find_type(section: Section[Any], key: str, name: str) -> instance_types.InstanceType | None:
    """Return the facts of an instance type. Report an unknown one with the most similar names."""
    if not section.ok(key):
        return None
    found = instance_types.TYPES.get(name)
    if found is None:
        near = instance_types.nearest(name)
        help_text = (
            f"; did you mean {' or '.join(near)}?"
            if near
            else "; components/documents/instance_types.py lists them"
        )
        section.reject(key, f"'{name}' is not a known instance type{help_text}")
    return found


def check_pools(
    entries: list[Section[PoolSection]],
    region: str,
    zones: tuple[str, ...],
    cluster: str,
    now: datetime,
    *,
    accepts_ended: bool,
) -> list[PoolEntry]:
    """Return the pools in the stack file's order, including invalid ones.

    Args:
        entries: The section.
        region: The stack's region, "" if it is invalid.
        zones: The network's zones.
        cluster: The cluster's name, the prefix of the stack's placement groups.
        now: A time with its zone. A capacity block that ended before it is refused.
        accepts_ended: Accept reservations that have ended.
    """
    pools: list[PoolEntry] = []
    names: set[str] = set()
    for section in entries:
        pool = _pool(section, region, zones)
        pool = _reservation(section, _data_volume(section, pool), now, accepts_ended=accepts_ended)
        pool = _placement(section, pool, cluster)
        if pool.name and pool.name in names:
            section.reject("name", f"'{pool.name}' names another pool, too; each pool needs its own name")
        names.add(pool.name)
        pools.append(PoolEntry(pool=pool, wrong=section.problems.first_keys(section.path)))
    if entries:
        _one_place_per_reservation(entries[0].problems, pools)
        _one_zone_per_placement_group(entries[0].problems, pools)
    return pools


def find_pool(section: Section[Any], pools: list[PoolEntry]) -> PoolEntry | None:
    """Return the pool that a section's `pool` names. Report an unknown name."""
    name: str = section.values.pool
    found = next((each for each in pools if each.pool.name == name), None)
    names = [each.pool.name for each in pools]
    # The pool may be one with an invalid name.
    if found is None and section.ok("pool") and names and all(names):
        section.reject("pool", f"'{name}' is not a pool{hint(name, names)} (pools: {', '.join(names)})")
    return found if name else None


def _pool(section: Section[PoolSection], region: str, zones: tuple[str, ...]) -> Pool:
    values = section.values
    known = find_type(section, "instanceType", values.instance_type)
    facts = known or instance_types.InstanceType(name=values.instance_type, vcpus=2, memory_gib=4)
    _check_zone(section, region, zones)
    if section.ok("maxNodes", "warmNodes") and values.warm_nodes > values.max_nodes:
        section.reject(
            "warmNodes", f"{values.warm_nodes} is more than maxNodes; it must be at most {values.max_nodes}"
        )
    policy = _check_efa(section, known)
    return instance_types.make_pool(
        facts,
        name=values.name,
        zone=values.zone,
        max_nodes=values.max_nodes,
        purchase=values.purchase,
        capacity_reservation_ids=values.capacity_reservation_ids,
        root_volume_gib=values.root_volume_gib,
        idle_seconds=values.idle_seconds,
        efa_policy=policy,
        warm_nodes=values.warm_nodes,
    )


def _check_zone(section: Section[PoolSection], region: str, zones: tuple[str, ...]) -> None:
    zone, usable = section.values.zone, zones_of(region, zones)
    if not region or not section.ok("zone"):
        return
    if not is_zone_of(region, zone):
        letter = zone[-1] if re.fullmatch(ZONE, zone) else "a"
        must_be = f"one of {', '.join(usable)}" if usable else f"a zone such as {region}{letter}"
        section.reject("zone", f"'{zone}' is not in {region}; it must be {must_be}")
    elif usable and zone not in usable:
        section.reject("zone", f"'{zone}' has no subnets here; it must be one of {', '.join(usable)}")


def _check_efa(section: Section[PoolSection], facts: instance_types.InstanceType | None) -> str:
    policy = section.values.efa
    if not section.has("efa"):
        return efa_layouts.IP if facts and facts.efa else efa_layouts.NONE
    if not section.ok("efa"):
        return efa_layouts.NONE
    if facts and policy != efa_layouts.NONE and not facts.efa:
        family = facts.name.partition(".")[0]
        others = [t.name for t in instance_types.TYPES.values() if t.efa and t.name.startswith(f"{family}.")]
        help_text = f", or instanceType one of {', '.join(others)}" if others else ""
        section.reject("efa", f"'{policy}' needs EFA and {facts.name} has none; it must be none{help_text}")
        return efa_layouts.NONE
    return policy


def _data_volume(section: Section[PoolSection], pool: Pool) -> Pool:
    snapshot, size = section.values.data_snapshot_id, section.values.data_volume_gib
    if size is not None and snapshot is None and section.ok("dataSnapshotId"):
        section.reject(
            "dataVolumeGiB", f"{size} is given without dataSnapshotId; it is the disk of a snapshot"
        )
    return replace(pool, data_snapshot_id=snapshot, data_volume_gib=size)


def _reservation(section: Section[PoolSection], pool: Pool, now: datetime, *, accepts_ended: bool) -> Pool:
    values = section.values
    if not section.ok("purchase"):
        return pool
    _check_reservation_ids(section)
    if pool.purchase != RESERVED:
        section.reject_given(
            ONLY_RESERVED, f"is given, but purchase is {pool.purchase}; it is for purchase: reserved"
        )
    begins, ends = values.reservation_begins, values.reservation_ends
    begin, end = utc(begins) if begins else None, utc(ends) if ends else None
    is_block = values.reservation_type == CAPACITY_BLOCK
    weeks = LATEST_BLOCK_START.days // 7
    if is_block and begin and begin > now + LATEST_BLOCK_START:
        section.reject(
            "reservationBegins",
            f"'{begins}' is too far: a capacity block begins at most {weeks} weeks from now, which"
            f" is {now + LATEST_BLOCK_START:%Y-%m-%d}; it must be the begin of the block that was bought",
        )
    if begin and end and begin >= end:
        section.reject(
            "reservationBegins",
            f"'{begins}' is not before reservationEnds ('{ends}'); it must be when the reservation begins",
        )
    latest = now + LONGEST_BLOCK + LATEST_BLOCK_START
    if is_block and end and end > latest:
        section.reject(
            "reservationEnds",
            f"'{ends}' is too far: a capacity block begins at most {weeks} weeks from now and lasts at most"
            f" {LONGEST_BLOCK.days} days, so that none ends after {latest:%Y-%m-%d}; it must be the end of the block"
            " that was bought",
        )
    if end and end <= now and not accepts_ended:
        section.reject(
            "reservationEnds",
            f"'{ends}' is past; it must be in the future, of a reservation that has not ended, or be left out"
            " where `up` is to start no run on it (docs/destroying.md)",
        )
    return replace(
        pool,
        reservation_type=values.reservation_type,
        reservation_begins=begin.isoformat() if begin else None,
        reservation_ends=end.isoformat() if end else None,
        on_demand_fallback=values.on_demand_fallback,
    )


def _check_reservation_ids(section: Section[PoolSection]) -> None:
    ids, purchase = section.values.capacity_reservation_ids, section.values.purchase
    is_reserved = purchase == RESERVED
    if is_reserved != bool(ids) and section.ok("capacityReservationIds"):
        section.reject(
            "capacityReservationIds",
            "is missing; purchase: reserved needs the ids of the reservations"
            if is_reserved
            else f"is given, but purchase is {purchase}; it must be reserved",
        )
    if again := twice(ids):
        section.reject("capacityReservationIds", f"'{again[0]}' is listed twice. Remove one.")


def _placement(section: Section[PoolSection], pool: Pool, cluster: str) -> Pool:
    group, around = section.values.placement_group, section.values.placement_group_of_reservation
    if section.ok("placementGroup", "placementGroupOfReservation", "purchase"):
        _check_placement(section, pool, group, around)
    return replace(
        pool,
        placement_group=f"{cluster}-{pool.name}" if group is True else group or None,
        makes_placement_group=group is True,
        placement_group_of_reservation=around,
    )


def _check_placement(
    section: Section[PoolSection], pool: Pool, group: bool | str, around: str | None
) -> None:
    """Check the placement group: EC2 launches into a reservation only in the placement group of the reservation."""
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
        advice = (
            f"it must be {around}"
            if around
            else "leave it out, or name the reservation's group here and in placementGroupOfReservation"
        )
        section.reject(
            "placementGroup",
            f"{shown(group)} is not the group of the reservation, so that no node could start; {advice}",
        )
    elif around and not group:
        section.reject(
            "placementGroup",
            f"is missing; the reservation lies in the placement group '{around}', so that it must be {around}",
        )


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
                    f"'{reservation}' is also in pool '{first.name}' ({first.instance_type}, {first.zone})."
                    " A reservation has one type and one zone.",
                )


def _one_zone_per_placement_group(problems: Problems, pools: list[PoolEntry]) -> None:
    """A cluster placement group is in one zone (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html).

    The preflight refuses other strategies. Two pools of one zone may share one.
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
                f"'{pool.placement_group}' is also in pool '{first.name}' ({first.zone}), and this pool is in"
                f" {pool.zone}. A placement group is in one zone.",
            )
