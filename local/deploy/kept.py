"""Data that a stack protects (`trainyard:protectData`): `down` refuses to take it, and leaves it when told to.

What is protected is asked of the engine's state, not of the stack file: it is what the last `up` made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Type -> what a person calls it. Settings of a bucket, rules of a group and so on are not named: they are many.
NAMED = {
    "aws:s3/bucket:Bucket": "bucket",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "file system",
    "aws:ecr/repository:Repository": "repository",
    "aws:kms/key:Key": "key",
}
# Its id is random; the program's name for it is that of its alias.
KEY = "aws:kms/key:Key"
# The engine leaves what is protected and all that it needs (pulumi/pulumi, cmd/pulumi/operations/destroy.go).
EXCEPT_DATA = ("--exclude-protected",)


class KeptError(Exception):
    """`down` was asked for what the stack's protection does not allow, or for what there is no protection for."""


def protected(deployment: Mapping[str, Any]) -> list[str]:
    """What of a state is protected: `bucket models-1a2b3c4`. Empty where nothing is."""
    resources = [each for each in deployment.get("resources") or [] if each.get("protect")]
    names = [
        f"{NAMED[each['type']]} {_name(each)}" for kind in NAMED for each in resources if each["type"] == kind
    ]
    return names or [_name(each) for each in resources]


def check(deployment: Mapping[str, Any], stack: str, cloud: str, keep_data: bool) -> list[str]:
    """What a destroy has to leave: nothing, or with `keep_data` what is protected. `cloud` is local or aws.

    Raises:
        KeptError: there is protected data and it is not to be kept, or the other way round.
    """
    found = protected(deployment)
    # Where the cloud is not said, it is the local one for the stack `local` alone.
    where = f"STACK={stack} CLOUD=local" if cloud == "local" else f"STACK={stack}"
    if found and not keep_data:
        raise KeptError(
            f"stack {stack} protects its data: {', '.join(found)}; nothing was changed. "
            f"`make down {where} KEEP_DATA=1` destroys all but that; to destroy it as well, set "
            f"trainyard:protectData to false, then `make up {where}` and `make down {where}`"
        )
    if keep_data and not found:
        raise KeptError(
            f"stack {stack} protects no data that KEEP_DATA could keep; nothing was changed. To keep it, set "
            f"trainyard:protectData to true and `make up {where}` first; to destroy it, leave KEEP_DATA out"
        )
    return found


def _name(resource: Mapping[str, Any]) -> str:
    if resource["type"] == KEY or "id" not in resource:
        return str(resource["urn"]).rpartition("::")[2]
    return str(resource["id"])
