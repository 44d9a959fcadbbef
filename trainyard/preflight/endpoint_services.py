"""Interface endpoints that a stack makes: whether AWS offers them in the region, and in each of the stack's zones.

An endpoint in a subnet whose zone its service does not serve is refused only when it is made
(https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from components.documents.vpc import service_name
from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Wanted

KEY: Final = "trainyard:network.interfaceEndpoints"


def read(account: Account, wanted: Wanted) -> dict[str, frozenset[str]]:
    """Zones that each wanted service can have an interface endpoint in; a service that is not offered is left out.

    All services are listed: one that there is not would spoil a question by names.
    """
    names = {service_name(wanted.region, name): name for name in wanted.endpoints}
    found = account.items("ec2", "describe_vpc_endpoint_services", "ServiceDetails")
    return {
        names[each["ServiceName"]]: frozenset(each.get("AvailabilityZones") or [])
        for each in found
        if each["ServiceName"] in names
        and any(kind["ServiceType"] == "Interface" for kind in each["ServiceType"])
    }


def check(wanted: Wanted, found: Mapping[str, frozenset[str]]) -> list[Problem]:
    """Each service must be offered in the region, and in every zone of the network."""
    absent = [name for name in wanted.endpoints if name not in found]
    problems = []
    if absent:
        problems.append(
            Problem(
                key=KEY,
                message=f"{', '.join(absent)}: {wanted.region} offers no interface endpoint of this name; it must be"
                " one that is offered there, and network.private: true needs a region that offers all of its own",
            )
        )
    for name in wanted.endpoints:
        missing = [zone for zone in wanted.zones if name in found and zone not in found[name]]
        if missing:
            problems.append(
                Problem(
                    key="trainyard:network.zones"
                    if wanted.vpc is None
                    else "trainyard:network.privateSubnetIds",
                    message=f"{', '.join(missing)}: the interface endpoint {name} is not offered there; it must be in"
                    f" {', '.join(sorted(found[name]))}, or without that endpoint",
                )
            )
    return problems
