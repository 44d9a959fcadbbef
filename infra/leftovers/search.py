"""The whole search: every kind by itself, so that a missing permission hides no other kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from infra.leftovers import read_ec2, read_services
from infra.leftovers.found import Found, Target
from infra.preflight.account import Account, Denied

Reader = Callable[[Account, Target], list[Found]]

READERS: Final[dict[str, Reader]] = {
    "EC2 instance": read_ec2.instances,
    **{kind.name: partial(read_ec2.of_kind, kind=kind) for kind in read_ec2.KINDS},
    "network interface of the cluster": read_ec2.cluster_interfaces,
    "GuardDuty's endpoint and group": read_ec2.guard_duty,
    "Auto Scaling group": read_ec2.groups_of_nodes,
    **read_services.READERS,
}


def search(account: Account, target: Target) -> tuple[list[Found], list[tuple[str, str]]]:
    """Everything that exists, and (kind, missing permission) of what could not be asked.

    Raises:
        botocore.exceptions.BotoCoreError: no credentials, no connection.
        botocore.exceptions.ClientError: AWS refused a call for another reason than a permission.
    """
    found: list[Found] = []
    unasked: list[tuple[str, str]] = []
    for name, reader in READERS.items():
        try:
            found += reader(account, target)
        except Denied as denied:
            unasked.append((name, denied.permission))
    return found, unasked
