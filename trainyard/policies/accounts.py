"""Whose account a stack is in, and who is of another one. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from trainyard.policies.model import Stack

PROVIDER: Final = "pulumi:providers:aws"
ACCOUNT_IN_ARN: Final = re.compile(r"arn:[^:]*:[^:]*:[^:]*:([^:]*):")


def own_accounts(stack: Stack) -> frozenset[str]:
    """The accounts that the stack's AWS providers may work in.

    Raises:
        Undecided: they are not known.
    """
    found: set[str] = set()
    for provider in stack.of(PROVIDER):
        # The engine keeps lists of a provider's inputs as JSON.
        listed = provider.known("allowedAccountIds", default=[])
        found.update(map(str, json.loads(listed) if isinstance(listed, str) else listed))
    return frozenset(found)


def account_of(principal: str) -> str | None:
    """The account of an ARN, or an account's own number; None for what has none, such as a service's name."""
    in_arn = ACCOUNT_IN_ARN.match(principal)
    if in_arn:
        return in_arn[1]
    return principal if principal.isdigit() else None


def foreign(principals: Iterable[str], stack: Stack) -> Iterator[str]:
    """Those of the principals who are of another account, or who can't be told from such.

    Raises:
        Undecided: the stack's own account is not known.
    """
    for principal in principals:
        account = account_of(principal)
        if account is not None and account not in own_accounts(stack):
            yield principal
