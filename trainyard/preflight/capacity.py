"""Machines: whether a type is offered, and whether reservations and placement groups are as the stack file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from components.documents.pool import taken_back_seconds
from trainyard.preflight.wanted import Caution, Problem, Wanted, WantedPool

# States of a reservation (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservation.html).
USABLE: Final = ("active", "scheduled")
PLATFORM: Final = "Linux/UNIX"
API_TYPES: Final = {"odcr": "default", "capacity-block": "capacity-block"}


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A capacity reservation. `free` are machines that nobody uses, `ours` those that this stack uses.

    `begins` is when it began or will, None where EC2 does not say; `ends` is None where it has no end. `group` is the
    name of the placement group that it lies in, if any.
    """

    reservation_id: str
    state: str
    zone: str
    instance_type: str
    total: int
    free: int
    match: str
    kind: str = "default"
    platform: str = PLATFORM
    tenancy: str = "default"
    begins: datetime | None = None
    ends: datetime | None = None
    group: str | None = None
    ours: int = 0


@dataclass(frozen=True, kw_only=True)
class PlacementGroup:
    """A placement group: its strategy (cluster, partition, spread), its state, and the zones of machines in it."""

    name: str
    strategy: str
    state: str
    zones: frozenset[str] = frozenset()


def check_offerings(wanted: Wanted, zones_of: Mapping[str, frozenset[str]]) -> list[Problem]:
    """Each type must be offered in its zone; the system nodes' type in every zone. `zones_of` maps a type to zones."""
    problems = [
        Problem(
            key=f"{pool.key}.instanceType",
            message=f"'{pool.instance_type}' is not offered in {pool.zone};"
            f" {_elsewhere(zones_of.get(pool.instance_type), wanted.region)}",
        )
        for pool in wanted.pools
        if pool.zone not in zones_of.get(pool.instance_type, frozenset())
    ]
    if wanted.system:
        name = wanted.system.instance_type
        missing = [zone for zone in wanted.zones if zone not in zones_of.get(name, frozenset())]
        if missing:
            problems.append(
                Problem(
                    key="trainyard:cluster.systemNodes.instanceType",
                    message=f"'{name}' is not offered in {', '.join(missing)}; it must be a type that all zones of"
                    " the network offer",
                )
            )
    return problems


def _elsewhere(zones: frozenset[str] | None, region: str) -> str:
    if not zones:
        return f"no zone of {region} offers it: another type or region is needed"
    return f"it must be in {' or '.join(sorted(zones))}"


def check_reservations(
    wanted: Wanted, found: Mapping[str, Reservation | None], now: datetime
) -> list[Problem | Caution]:
    """Reservations of each pool: there, usable, of its zone and type, targeted, with enough machines, not ended.

    Pools that name the same one share its machines. One that has not begun is told in any case: as missing where the
    stack file says it wrong, else as a caution.
    """
    problems: list[Problem | Caution] = []
    for pool in wanted.pools:
        mine = []
        for index, identity in enumerate(pool.reservation_ids):
            key = f"{pool.key}.capacityReservationIds[{index}]"
            reservation = found.get(identity)
            if reservation is None:
                problems.append(
                    Problem(
                        key=key,
                        message=f"'{identity}' does not exist in {wanted.region}; it must be a reservation that this"
                        " account owns or that is shared with it",
                    )
                )
                continue
            told = [Problem(key=key, message=m) for m in _reservation(pool, reservation, now)]
            problems += told + _group(pool, reservation)
            mine.append(reservation)
        problems += [*_begin(pool, mine, now), *_end(pool, mine, now)]
        problems += _count(pool, [each for each in mine if _may_serve(pool, each, now)])
    return [*problems, *_shared(wanted, found, now)]


def _may_serve(pool: WantedPool, found: Reservation, now: datetime) -> bool:
    """Whether a reservation can be the pool's; of another one it says nothing how many machines are free."""
    lasts = found.state in USABLE and (found.ends is None or found.ends > now)
    return lasts and (found.zone, found.instance_type) == (pool.zone, pool.instance_type)


def _reservation(pool: WantedPool, found: Reservation, now: datetime) -> list[str]:
    said = f"'{found.reservation_id}'"
    messages = []
    if found.ends is not None and found.ends <= now:
        messages.append(f"{said} ended at {found.ends:%Y-%m-%dT%H:%MZ}; it must be one that has not ended")
    elif found.state not in USABLE:
        messages.append(f"{said} is {found.state}; it must be active or scheduled")
    elif found.ends is not None and found.kind == API_TYPES["capacity-block"]:
        before = timedelta(seconds=taken_back_seconds(found.instance_type))
        if found.ends - before <= now:
            messages.append(
                f"{said} ends at {_moment(found.ends)}, and a run has to be over {before // timedelta(minutes=1)}"
                " minutes before, when Karpenter begins to drain its machines; it must be one that lasts longer"
            )
    if found.zone != pool.zone:
        messages.append(f"{said} lies in {found.zone}; it must lie in {pool.zone}, the pool's zone")
    if found.instance_type != pool.instance_type:
        messages.append(f"{said} is of {found.instance_type}; it must be of {pool.instance_type}")
    if found.match != "targeted":
        messages.append(
            f"{said} is {found.match}, so that any machine of its type in the zone takes it up; its match criteria"
            " must be targeted"
        )
    if found.kind != API_TYPES.get(pool.reservation_type, pool.reservation_type):
        kind = next((name for name, api in API_TYPES.items() if api == found.kind), found.kind)
        messages.append(
            f"{said} is of the type {kind}, and reservationType is {pool.reservation_type}; both must be the same"
        )
    if found.platform != PLATFORM:
        messages.append(f"{said} is for {found.platform}; it must be for {PLATFORM}")
    if found.tenancy != "default":
        messages.append(f"{said} has {found.tenancy} tenancy; it must have default tenancy")
    return messages


def _begin(pool: WantedPool, found: list[Reservation], now: datetime) -> list[Problem] | list[Caution]:
    """The begin that is told must be the first one of the pool's reservations; one that is past need not be told.

    Before the first of them begins there is no machine, and the launcher refuses a run whose wait is over by then. A
    capacity block that has not begun must say when, since the launcher can't ask. Like `_end`, nothing is told while a
    reservation is missing.
    """
    lasting = [each for each in found if each.ends is None or each.ends > now]
    begins = sorted((each.begins, each.reservation_id) for each in lasting if each.begins)
    if not begins or len(begins) != len(lasting) or len(found) != len(pool.reservation_ids):
        return []
    key, told, (first, identity) = f"{pool.key}.reservationBegins", pool.reservation_begins, begins[0]
    if first <= now:
        if told is None or told <= now:
            return []
        right = f"be left out: '{identity}' has begun, at {_moment(first)}"
        return [Problem(key=key, message=f"is {_moment(told)}; it must {right}")]
    among = f", the first of {len(begins)} to begin" if len(begins) > 1 else ""
    block = any(each.kind == API_TYPES["capacity-block"] for each in lasting)
    if told == first or (told is None and not block):
        without = "none but those on demand" if pool.on_demand_fallback else "no machines"
        begin = f"'{identity}' begins at {_moment(first)}{among}"
        return [Caution(key=key, message=f"{begin}; until then the pool has {without}")]
    said = "is missing" if told is None else f"is {_moment(told)}"
    return [
        Problem(key=key, message=f"{said}; it must be {_moment(first)}, the begin of '{identity}'{among}")
    ]


def _end(pool: WantedPool, found: list[Reservation], now: datetime) -> list[Problem]:
    """The end that is told must be the first one of the pool's reservations, and a capacity block's must be told.

    A run may get machines of any of them, so that it has to be over when the first of them go. Which end that is isn't
    known while a reservation is missing; one that has ended is told already and has to go.
    """
    lasting = [each for each in found if each.ends is None or each.ends > now]
    if not lasting or len(found) != len(pool.reservation_ids):
        return []
    told = pool.reservation_ends
    ends = sorted((each.ends, each.reservation_id) for each in lasting if each.ends)
    must = any(each.ends and each.kind == API_TYPES["capacity-block"] for each in lasting)
    if told == (ends[0][0] if ends else None) or (told is None and not must):
        return []
    said = "is missing" if told is None else f"is {_moment(told)}"
    right = "be left out: none of the pool's reservations ends"
    if ends:
        first, identity = ends[0]
        among = f", the first of {len(ends)} to end" if len(ends) > 1 else ""
        right = f"be {_moment(first)}, the end of '{identity}'{among}"
    return [Problem(key=f"{pool.key}.reservationEnds", message=f"{said}; it must {right}")]


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _group(pool: WantedPool, found: Reservation) -> list[Problem]:
    """EC2 launches into a reservation only inside of the placement group that it was made in, if any.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html. Capacity blocks have none to name.
    """
    told = pool.placement_group_of_reservation
    if found.kind == "capacity-block" or told == found.group:
        return []
    said = (
        "is missing" if told is None else f"'{told}' is not the placement group of '{found.reservation_id}'"
    )
    right = (
        f"it must be '{found.group}', in which '{found.reservation_id}' lies, and so must placementGroup"
        if found.group
        else "that lies in none: it must be left out, and so must placementGroup"
    )
    return [Problem(key=f"{pool.key}.placementGroupOfReservation", message=f"{said}; {right}")]


def _count(pool: WantedPool, found: list[Reservation]) -> list[Problem]:
    """Machines that the reservations can give, unless more may be bought on demand."""
    if pool.on_demand_fallback or not found or len(found) != len(pool.reservation_ids):
        return []
    free = sum(_free(reservation) for reservation in found)
    if free >= pool.max_nodes:
        return []
    return [
        Problem(
            key=f"{pool.key}.maxNodes",
            message=f"{pool.max_nodes} is more than the reservations have free ({free} of"
            f" {sum(r.total for r in found)}); it must be at most {free}, or onDemandFallback: true",
        )
    ]


def _shared(wanted: Wanted, found: Mapping[str, Reservation | None], now: datetime) -> list[Problem]:
    """Pools that share reservations must find enough machines in them together; those that may buy more do not count.

    Only pools all of whose reservations are there and may be theirs are counted; those that share none are judged by
    themselves.
    """
    counted = [
        pool
        for pool in wanted.pools
        if pool.reservation_ids
        and not pool.on_demand_fallback
        and all(
            each is not None and _may_serve(pool, each, now)
            for each in (found.get(identity) for identity in pool.reservation_ids)
        )
    ]
    problems = []
    for pools in _sharing(counted):
        each = [found[name] for name in dict.fromkeys(i for pool in pools for i in pool.reservation_ids)]
        free, need = sum(_free(r) for r in each if r), sum(pool.max_nodes for pool in pools)
        if len(pools) > 1 and need > free:
            names = ", ".join(f"'{r.reservation_id}'" for r in each if r)
            problems.append(
                Problem(
                    key=" and ".join(f"{pool.key}.maxNodes" for pool in pools),
                    message=f"{need} together is more than {names}, which these pools share, has free ({free});"
                    f" they must be at most {free} together, or onDemandFallback: true",
                )
            )
    return problems


def _sharing(pools: list[WantedPool]) -> list[list[WantedPool]]:
    """The pools in groups, so that none shares a reservation with one of another group."""
    groups: list[list[WantedPool]] = []
    for pool in pools:
        ids = set(pool.reservation_ids)
        near = [group for group in groups if any(ids & set(other.reservation_ids) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), pool])
    return groups


def _free(reservation: Reservation) -> int:
    """Machines that a stack can have of it. Before it starts, a scheduled one has nothing free yet."""
    return reservation.total if reservation.state == "scheduled" else reservation.free + reservation.ours


def check_placement_groups(wanted: Wanted, found: Mapping[str, PlacementGroup]) -> list[Problem]:
    """A placement group that is named must exist and be one for machines close to each other, in the pool's zone.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html, "can't span multiple
    Availability Zones".
    """
    problems = []
    for pool in wanted.pools:
        name = pool.placement_group
        if name is None:
            continue
        group = found.get(name)
        if group is None:
            said = f"'{name}' does not exist in {wanted.region}; it must be a placement group of this account"
        elif group.state != "available":
            said = f"'{name}' is {group.state}; it must be available"
        elif group.strategy != "cluster":
            said = f"'{name}' has the strategy {group.strategy}; it must be cluster"
        elif others := sorted(group.zones - {pool.zone}):
            said = (
                f"'{name}' has machines in {', '.join(others)}, and a group of the strategy cluster is in one zone;"
                f" it must be one without machines, or with machines in {pool.zone}"
            )
        else:
            continue
        problems.append(Problem(key=f"{pool.key}.placementGroup", message=said))
    return problems


def check_spot_role(wanted: Wanted, exists: bool) -> list[Problem]:
    """Spot machines need the account's service-linked role, which Karpenter may not make.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html
    """
    if exists:
        return []
    return [
        Problem(
            key=f"{pool.key}.purchase",
            message="is spot, and the account has no role AWSServiceRoleForEC2Spot; it must be made once:"
            " aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        )
        for pool in wanted.pools
        if pool.purchase == "spot"
    ]
