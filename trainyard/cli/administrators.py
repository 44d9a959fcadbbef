"""Create the users and roles that a stack file names as administrators, on the local cloud. EKS requires that they
exist.

They have ARNs and no rights in the emulated account. Principals of other accounts are not created; EKS accepts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from trainyard.cli.existing_cluster import GIVEN_TAG
from trainyard.cli.next_steps import made_here

PRINCIPAL: Final = re.compile(
    r"arn:aws[a-z-]*:iam::(?P<account>[0-9]{12}):(?P<kind>user|role)(?P<path>/(?:[!-~]+/)?)(?P<name>[\w+=,.@-]{1,64})",
    re.ASCII,
)


def give_people(settings: Mapping[str, Any], iam: Any, account: str, say: Callable[[str], None]) -> None:
    """Create the administrators in the settings that the account does not have yet.

    Raises:
        ClientError: The account refused to create one.
    """
    named = settings.get("administrators")
    for arn in named if isinstance(named, list) else ():
        found = PRINCIPAL.fullmatch(arn) if isinstance(arn, str) else None
        if found is not None and found["account"] == account and _made(found, arn, iam, account):
            say(made_here(f"{found['kind']} {arn}"))


def _made(found: re.Match[str], arn: str, iam: Any, account: str) -> bool:
    """Create a user or role if it is missing, and return whether it was. EKS refuses one with another path."""
    tags = [{"Key": GIVEN_TAG, "Value": arn}]
    try:
        if found["kind"] == "user":
            iam.create_user(UserName=found["name"], Path=found["path"], Tags=tags)
            return True
        trust = {
            "Effect": "Allow",
            "Principal": {"AWS": f"arn:aws:iam::{account}:root"},
            "Action": "sts:AssumeRole",
        }
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        iam.create_role(
            RoleName=found["name"], Path=found["path"], AssumeRolePolicyDocument=document, Tags=tags
        )
    except iam.exceptions.EntityAlreadyExistsException:
        return False
    return True
