"""Reading the pools of a stack file; part of `infra.settings`."""

from __future__ import annotations

import re
from typing import Final

from components.shared.pool import Pool
from infra import accelerators
from infra.reading import Problems, Section, entries

DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?"


def zone_of(region: str, zone: str) -> bool:
    """Whether a zone's name is one of the region."""
    return bool(re.fullmatch(re.escape(region) + "[a-z]", zone))


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


def read_pools(problems: Problems, value: object, region: str, zones: tuple[str, ...]) -> list[Pool | None]:
    """The pools; None stands for one that is wrong, so that its name still counts."""
    path = "trainyard:pools"
    sections = entries(problems, path, value)
    if value is None or value == []:
        problems.add(
            path, "is missing; it must list at least one pool with name, instanceType, zone, maxNodes"
        )
    pools: list[Pool | None] = []
    names: set[str] = set()
    for section in sections:
        pool = _pool(section, region, zones)
        if pool.name and pool.name in names:
            section.reject("name", f"'{pool.name}' names another pool, too; each pool needs its own name")
        names.add(pool.name)
        pools.append(None if section.wrong else pool)
    return pools


def _pool(section: Section, region: str, zones: tuple[str, ...]) -> Pool:
    name = section.text(
        "name", pattern=DNS_LABEL, wanted="lower case letters, digits and hyphens, at most 40"
    )
    type_name = section.text("instanceType")
    facts = known_type(section, "instanceType", type_name) or accelerators.InstanceType(
        name=type_name, vcpus=2, memory_gib=4
    )
    zone = section.text("zone", wanted="the name of a zone")
    if "zone" not in section.wrong and region:
        if not zone_of(region, zone):
            section.reject("zone", f"'{zone}' is not in {region}; it must be one of {', '.join(zones)}")
        elif zone not in zones:
            section.reject("zone", f"'{zone}' has no subnets here; it must be one of {', '.join(zones)}")
    max_nodes = section.integer("maxNodes", least=1, most=1000, unit="machines")
    purchase = section.choice("purchase", ("on-demand", "spot", "reserved"), "on-demand")
    reservations = section.texts(
        "capacityReservationIds", pattern=r"cr-[0-9a-f]{8,17}", wanted="an id such as cr-0123456789abcdef0"
    )
    if "purchase" not in section.wrong and (purchase == "reserved") != bool(reservations):
        section.reject(
            "capacityReservationIds",
            "is missing; purchase: reserved needs the ids of the reservations"
            if purchase == "reserved"
            else f"is given, but purchase is {purchase}; it must be reserved",
        )
    volume = section.integer("rootVolumeGiB", 200, least=20, most=16384, unit="GiB")
    idle = section.integer("idleSeconds", 600, least=30, unit="seconds")
    section.done()
    return Pool(
        name=name,
        instance_type=type_name,
        zone=zone,
        max_nodes=max_nodes,
        purchase=purchase,
        capacity_reservation_ids=reservations,
        root_volume_gib=volume,
        idle_seconds=idle,
        resource=facts.resource,
        accelerators=facts.accelerators,
        vcpus=facts.vcpus,
        memory_gib=facts.memory_gib,
        nvme_gb=facts.nvme_gb,
    )
