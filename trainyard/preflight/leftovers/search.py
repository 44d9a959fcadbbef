"""The whole search: every kind by itself, so that a missing permission or an error hides no other kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.preflight.account import Account, Denied, said, without_credentials
from trainyard.preflight.leftovers import read_ec2, read_services
from trainyard.preflight.leftovers.found import Found, Target

Reader = Callable[[Account, Target], list[Found]]

READERS: Final[dict[str, Reader]] = {
    "EC2 instance": read_ec2.instances,
    **{kind.name: partial(read_ec2.of_kind, kind=kind) for kind in read_ec2.KINDS},
    "network interface of the cluster": read_ec2.cluster_interfaces,
    "GuardDuty's endpoint and group": read_ec2.guard_duty,
    "Auto Scaling group": read_ec2.groups_of_nodes,
    **read_services.READERS,
}


@dataclass(kw_only=True)
class Search:
    """Everything that exists, and the kinds that were not searched.

    `unasked` are kinds and the permission that is missing for each; `failed` are those that AWS refused, or answered
    not at all, for another reason: the kind and what it said.
    """

    found: list[Found] = field(default_factory=list)
    unasked: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


def search(account: Account, target: Target) -> Search:
    """Ask for every kind.

    Raises:
        botocore.exceptions.BotoCoreError: there are no credentials.
        botocore.exceptions.ClientError: they are not good, or have ended.
    """
    result = Search()
    for name, reader in READERS.items():
        try:
            result.found += reader(account, target)
        except Denied as denied:
            result.unasked.append((name, denied.permission))
        except (BotoCoreError, ClientError) as error:
            if without_credentials(error):
                raise
            result.failed.append((name, said(error)))
    return result
