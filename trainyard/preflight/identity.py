"""Who asks, and whether the region and its zones are usable: pure checks on what STS and EC2 said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from infra import ranges
from trainyard.preflight.wanted import Problem, Wanted

# Zones in which EKS puts no control plane, by zone id
# (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html, "Subnet requirements for clusters").
ZONES_WITHOUT_EKS: Final = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})


@dataclass(frozen=True, kw_only=True)
class Zone:
    """One availability zone as this account sees it: `state` is `available` where it can be used."""

    name: str
    zone_id: str
    state: str


def principal_arn(caller: str) -> str:
    """The user or role behind the ARN that STS gives for a session.

    An assumed role shows as arn:aws:sts::<account>:assumed-role/<role>/<session>, without the role's path
    (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html).
    """
    found = re.fullmatch(r"arn:([a-z-]+):sts::([0-9]{12}):assumed-role/([^/]+)/.+", caller)
    if found is None:
        return caller
    partition, account, role = found.groups()
    return f"arn:{partition}:iam::{account}:role/{role}"


def same_principal(caller: str, given: str) -> bool:
    """Whether an administrator's ARN is the caller's; of a role the path is not known to STS, so it is left out."""
    ours = principal_arn(caller)
    if ":role/" not in ours or ":role/" not in given:
        return ours == given
    head, _, path = given.partition(":role/")
    return ours == f"{head}:role/{path.rsplit('/', 1)[-1]}"


def check_caller(wanted: Wanted, caller: str) -> list[Problem]:
    """The caller must be of the account to deploy to, and an administrator of the cluster."""
    problems = []
    account = caller.split(":")[4]
    if account != wanted.account:
        problems.append(
            Problem(
                key=wanted.account_key,
                message=f"says account {wanted.account}, but the credentials in use are of account {account}"
                f" ({caller}); it must be one and the same account",
            )
        )
    elif not wanted.administrators:
        # Who may enter a given cluster is its owner's business.
        return []
    elif not any(same_principal(caller, arn) for arn in wanted.administrators):
        problems.append(
            Problem(
                key="trainyard:cluster.administrators",
                message=f"does not name {principal_arn(caller)}, whose credentials are in use; without it the"
                " deployment could make the cluster and then not enter it: add this ARN",
            )
        )
    return problems


def check_ranges(wanted: Wanted) -> list[Problem]:
    """Whoever deploys must come from one of the ranges. AWS tells nobody their address, but some are nobody's."""
    return [
        Problem(
            key=f"trainyard:cluster.publicAccessCidrs[{index}]",
            message=f"{block} is a documentation range, from which nobody comes; it must hold the address that you"
            " deploy from",
        )
        for index, block in enumerate(wanted.public_ranges)
        if ranges.documents(block)
    ]


def check_zones(wanted: Wanted, zones: list[Zone]) -> list[Problem]:
    """Every zone of the stack must exist for this account, be in service and take an EKS control plane.

    The control plane of a given cluster is somewhere already.
    """
    known = {zone.name: zone for zone in zones}
    usable = ", ".join(sorted(z.name for z in zones if z.state == "available")) or "none"
    problems = []
    for index, name in enumerate(wanted.zones):
        key = (
            f"trainyard:network.zones[{index}]"
            if wanted.vpc is None
            else "trainyard:network.privateSubnetIds"
        )
        zone = known.get(name)
        if zone is None or zone.state != "available":
            said = "does not exist for this account" if zone is None else f"is {zone.state}"
            problems.append(Problem(key=key, message=f"zone {name} {said}; it must be one of {usable}"))
        elif zone.zone_id in ZONES_WITHOUT_EKS and wanted.existing_cluster is None:
            problems.append(
                Problem(
                    key=key,
                    message=f"zone {name} is {zone.zone_id} for this account, where EKS can't put a control"
                    f" plane; it must be another of {usable}",
                )
            )
    return problems
