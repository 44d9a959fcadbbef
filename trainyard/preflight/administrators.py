"""Administrators of a cluster: EKS makes access entries for users and roles that exist, and refuses all others.

The refusal ("The specified principalArn is invalid: invalid principal.") comes once the control plane is there, ten
minutes into `up` (https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Unasked, Wanted

KINDS: Final = ("role", "user")
# IAM answers the last two for a name that it would give nobody.
NOBODY: Final = ("NoSuchEntity", "ValidationError", "InvalidInput")
READERS: Final = {
    "role": ("get_role", "RoleName", "Role"),
    "user": ("get_user", "UserName", "User"),
}


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user or role that is named: its key in the stack file, its ARN, account, kind and name without the path."""

    key: str
    arn: str
    account: str
    kind: str
    name: str


def people(wanted: Wanted) -> list[Person]:
    """The administrators of a stack."""
    found = []
    for index, arn in enumerate(wanted.administrators):
        account, what = arn.split(":", 5)[4:]
        kind, _, path = what.partition("/")
        found.append(
            Person(
                key=f"trainyard:cluster.administrators[{index}]",
                arn=arn,
                account=account,
                kind=kind,
                name=path.rsplit("/", 1)[-1],
            )
        )
    return found


def read(account: Account, wanted: Sequence[Person], own: str) -> dict[str, str]:
    """The ARNs that people of the account `own` really have, by the ARN that names them, as far as they exist."""
    found = {}
    for person in wanted:
        if person.account != own or not person.name:
            continue
        method, parameter, key = READERS[person.kind]
        answer = account.call("iam", method, missing=NOBODY, **{parameter: person.name})
        if answer is not None:
            found[person.arn] = str(answer[key]["Arn"])
    return found


def check(wanted: Sequence[Person], own: str, found: Mapping[str, str]) -> list[Problem | Unasked]:
    """Each must exist, with exactly this ARN; those of another account than `own` can't be asked for."""
    told: list[Problem | Unasked] = []
    for person in wanted:
        real = found.get(person.arn)
        if person.account != own:
            message = (
                f"'{person.arn}' is of account {person.account}, which can't be asked with credentials of account"
                f" {own}; EKS refuses a {person.kind} that does not exist there"
            )
            told.append(Unasked(key=person.key, message=message))
        elif real is None:
            message = f"'{person.arn}' does not exist; it must be a {person.kind} that does, since EKS refuses others"
            told.append(Problem(key=person.key, message=message))
        elif real != person.arn:
            message = f"'{person.arn}' is not the ARN of the {person.kind} {person.name}; it must be '{real}'"
            told.append(Problem(key=person.key, message=message))
    return told
