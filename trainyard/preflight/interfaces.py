"""Network interfaces: what the machines of each zone need, what is used there and what the account allows.

Those of the control plane, of NAT gateways, endpoints and file systems, a few dozen of thousands, are not foreseen;
once they are there they count as used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trainyard.preflight import read_capacity
from trainyard.preflight.account import Account, by_tags, has, tags_of
from trainyard.preflight.quotas import INTERFACES, SYSTEM_KEY, Use, too_small
from trainyard.preflight.wanted import Problem, Wanted


def needs(wanted: Wanted) -> dict[str, list[Use]]:
    """What takes interfaces in each zone, at the ceilings of the pools."""
    found: dict[str, list[Use]] = {}
    if wanted.system:
        nodes = wanted.system
        # They are spread evenly.
        count = -(-nodes.count // len(wanted.zones)) + nodes.spare
        what = f"{count} {nodes.instance_type}"
        for zone in wanted.zones:
            found[zone] = [Use(quota=INTERFACES, key=SYSTEM_KEY, amount=count * nodes.interfaces, what=what)]
    for pool in wanted.pools:
        use = Use(
            quota=INTERFACES,
            key=f"{pool.key}.maxNodes",
            amount=pool.max_nodes * pool.interfaces,
            what=f"{pool.max_nodes} {pool.instance_type} with {pool.interfaces} each",
        )
        found.setdefault(pool.zone, []).append(use)
    return found


def used(account: Account, wanted: Wanted) -> Counter[str]:
    """How many interfaces others than this stack's machines have in each zone."""
    ours = {machine["InstanceId"] for machine in read_capacity.instances(account, by_tags(wanted.tags))}
    found: Counter[str] = Counter()
    for each in account.items("ec2", "describe_network_interfaces", "NetworkInterfaces"):
        machine = (each.get("Attachment") or {}).get("InstanceId")
        if machine not in ours and not has(tags_of(each, key="TagSet"), wanted.tags):
            found[each["AvailabilityZone"]] += 1
    return found


def check(wanted: Wanted, limit: float | None, others: Mapping[str, int]) -> list[Problem]:
    """Each zone must hold what others have there and what this stack needs; `limit` None: it is not known."""
    return [
        problem
        for zone, uses in sorted(needs(wanted).items())
        for problem in too_small(uses, limit, others.get(zone, 0), zone)
    ]
