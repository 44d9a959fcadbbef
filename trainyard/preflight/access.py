"""Check the caller, its address ranges, the cluster's administrators, service-linked roles and zones."""

from __future__ import annotations

import re
from typing import Final

from infra.settings import Settings, ranges
from trainyard.preflight.aws import Aws, account_id, caller_arn, filter_by
from trainyard.preflight.findings import SKIPPED, Finding, pool_key

CLUSTER: Final = "trainyard:cluster"
# Zone ids where EKS can't put a control plane
# (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html, "Subnet requirements for clusters").
ZONES_WITHOUT_EKS: Final = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
# IAM's answers for a name that does not exist, and for one that can't exist.
NO_PRINCIPAL: Final = ("NoSuchEntity", "ValidationError", "InvalidInput")
SERVICE_ROLES: Final = "/aws-service-role/{service}/"


def principal_arn(caller: str) -> str:
    """Return the ARN of the user or role of a session.

    The ARN of an assumed role is arn:aws:sts::<account>:assumed-role/<role>/<session>, without the role's path
    (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html).
    """
    found = re.fullmatch(r"arn:([a-z-]+):sts::([0-9]{12}):assumed-role/([^/]+)/.+", caller)
    return caller if found is None else "arn:{}:iam::{}:role/{}".format(*found.groups())


def is_principal(caller: str, arn: str) -> bool:
    """Return whether an ARN is that of the caller. Ignore a role's path, because STS does not show it."""
    head, role, path = arn.partition(":role/")
    return principal_arn(caller) == (f"{head}{role}{path.rsplit('/', 1)[-1]}" if role else arn)


def check_caller(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the caller is in the account of the stack, and is one of `cluster.administrators`."""
    cluster, caller = settings.cluster, caller_arn(aws)
    account = account_id(aws)
    if account != cluster.account_id:
        accounts = {arn.split(":")[4] for arn in cluster.administrators}
        setting = "accountId" if len(accounts) > 1 else "administrators"
        message = (
            f"is account {cluster.account_id}, but the credentials are of account {account} ({caller})."
            " Both must be the same account"
        )
        return [Finding(f"{CLUSTER}.{'existing.oidcProviderArn' if cluster.existing else setting}", message)]
    # The owner of an existing cluster decides who has access.
    if not cluster.administrators or any(is_principal(caller, arn) for arn in cluster.administrators):
        return []
    message = (
        f"does not contain {principal_arn(caller)}, whose credentials are in use. Add this ARN; without it the"
        " deployment creates a cluster that it can't access"
    )
    return [Finding(f"{CLUSTER}.administrators", message)]


def check_public_ranges(settings: Settings, _aws: Aws) -> list[Finding]:
    """Check that `cluster.publicAccessCidrs` has no documentation range (RFC 5737). AWS does not show your address."""
    return [
        Finding(
            f"{CLUSTER}.publicAccessCidrs[{index}]",
            f"{block} is a documentation range. It must contain the address that you deploy from",
        )
        for index, block in enumerate(settings.cluster.public_access_cidrs)
        if ranges.documents(block)
    ]


def check_admin_roles(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that roles in `cluster.administrators` exist with this ARN. Other accounts can't be checked."""
    return _check_administrators(settings, aws, "role")


def check_admin_users(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that users in `cluster.administrators` exist with this ARN. Other accounts can't be checked."""
    return _check_administrators(settings, aws, "user")


def _check_administrators(settings: Settings, aws: Aws, kind: str) -> list[Finding]:
    """Check that the principals exist: EKS refuses the access entry of a missing one, ten minutes into `up`.

    Source: https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html
    """
    found, own = [], account_id(aws)
    for index, arn in enumerate(settings.cluster.administrators):
        account, resource = arn.split(":", 5)[4:]
        if resource.partition("/")[0] != kind:
            continue
        key = f"{CLUSTER}.administrators[{index}]"
        if account != own:
            message = (
                f"'{arn}' is of account {account}, which credentials of account {own} can't read. EKS refuses a"
                f" {kind} that does not exist"
            )
            found.append(Finding(key, message, SKIPPED))
            continue
        name = resource.rsplit("/", 1)[-1]
        real = _principal(aws, kind, name) if name else None
        if real is None:
            message = f"'{arn}' does not exist. It must be an existing {kind}"
            found.append(Finding(key, message))
        elif real != arn:
            found.append(Finding(key, f"'{arn}' is not the ARN of the {kind} {name}. It must be '{real}'"))
    return found


def _principal(aws: Aws, kind: str, name: str) -> str | None:
    """Return the ARN of a user or role of this account; None if it does not exist."""
    if kind == "role":
        answer = aws.call("iam", "get_role", missing=NO_PRINCIPAL, RoleName=name)
    else:
        answer = aws.call("iam", "get_user", missing=NO_PRINCIPAL, UserName=name)
    return str(answer[kind.capitalize()]["Arn"]) if answer else None


def check_zones(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that each zone is available, and that EKS can put a new cluster's control plane there."""
    zones = aws.items(
        "ec2",
        "describe_availability_zones",
        "AvailabilityZones",
        Filters=[filter_by("zone-type", "availability-zone")],
    )
    known = {zone["ZoneName"]: zone for zone in zones}
    usable = ", ".join(sorted(zone["ZoneName"] for zone in zones if zone["State"] == "available")) or "none"
    found = []
    for index, name in enumerate(settings.network.zones):
        key = f"trainyard:network.{'privateSubnetIds' if settings.network.existing else f'zones[{index}]'}"
        zone = known.get(name)
        if zone is None or zone["State"] != "available":
            state = "does not exist in this account" if zone is None else f"is {zone['State']}"
            found.append(Finding(key, f"zone {name} {state}. It must be one of {usable}"))
        elif zone.get("ZoneId") in ZONES_WITHOUT_EKS and settings.cluster.existing is None:
            message = (
                f"zone {name} is {zone['ZoneId']}, where EKS can't put a control plane."
                f" It must be another one of {usable}"
            )
            found.append(Finding(key, message))
    return found


def has_service_role(aws: Aws, service: str) -> bool:
    """Return whether the account has the service-linked role of a service."""
    path = SERVICE_ROLES.format(service=service)
    return any(role["Path"] == path for role in aws.items("iam", "list_roles", "Roles", PathPrefix=path))


def check_spot_role(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the account has EC2's service-linked role for spot instances. Karpenter may not create it.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/service-linked-roles-spot-instance-requests.html
    """
    pools = [index for index, pool in enumerate(settings.pools) if pool.purchase == "spot"]
    if not pools or has_service_role(aws, "spot.amazonaws.com"):
        return []
    message = (
        "is spot, but the account has no role AWSServiceRoleForEC2Spot. Create it once:"
        " aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
    )
    return [Finding(pool_key(index, "purchase"), message) for index in pools]
