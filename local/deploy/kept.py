"""Data that a stack protects (`trainyard:protectData`): `down` refuses to take it, and leaves it when told to.

What is protected is asked of the engine's state, not of the stack file: it is what the last `up` made it. Kept data can
be deleted without building a cluster around it first (`released`).
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
CLUSTERS = ("aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup")
# What AWS deletes only where it is told to delete the content as well, and what a file system leaves behind. The
# provider takes these inputs from the state when it deletes.
WITH_CONTENT = {
    "aws:s3/bucket:Bucket": {"forceDestroy": True},
    "aws:ecr/repository:Repository": {"forceDelete": True},
    "aws:fsx/lustreFileSystem:LustreFileSystem": {"skipFinalBackup": True},
}
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
    if found and not keep_data and not has_cluster(deployment):
        raise KeptError(
            f"stack {stack} is destroyed but for its data: {', '.join(found)}; nothing was changed. "
            f"`make delete-data {where} CONFIRM={stack}` deletes it for good; `make up {where}` builds the stack"
            " around it"
        )
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


def has_cluster(deployment: Mapping[str, Any]) -> bool:
    """Whether more than the data is there: a cluster, or objects in a given one."""
    return any(
        each["type"] in CLUSTERS or str(each["type"]).startswith("kubernetes:")
        for each in deployment.get("resources") or []
    )


def check_deletion(deployment: Mapping[str, Any], stack: str, cloud: str, confirmed: str) -> list[str]:
    """Return the kept data that a person wants deleted.

    Raises:
        KeptError: there is none, something runs beside it, or the stack's name was not given to confirm it.
    """
    where = f"STACK={stack} CLOUD=local" if cloud == "local" else f"STACK={stack}"
    found = protected(deployment)
    if not found:
        raise KeptError(
            f"stack {stack}: keeps no data; nothing was changed. `make down {where}` destroys what there is"
        )
    if has_cluster(deployment):
        raise KeptError(
            f"stack {stack}: is up, so that its data may be in use; nothing was changed. "
            f"`make down {where} KEEP_DATA=1` destroys all but the data, then `make delete-data {where}` the data"
        )
    if confirmed != stack:
        raise KeptError(
            f"stack {stack}: {', '.join(found)} with all content would be deleted for good; nothing was changed. "
            f"`make delete-data {where} CONFIRM={stack}` deletes them"
        )
    return found


def released(exported: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state, as `pulumi stack export` writes it, of which a destroy takes all, with the content."""
    deployment = dict(exported["deployment"])
    deployment["resources"] = [
        {**each, "protect": False, **{key: {**each.get(key, {}), **more} for key in ("inputs", "outputs")}}
        if (more := WITH_CONTENT.get(each["type"], {}))
        else {**each, "protect": False}
        for each in deployment.get("resources") or []
    ]
    return {**exported, "deployment": deployment}


def _name(resource: Mapping[str, Any]) -> str:
    if resource["type"] == KEY or "id" not in resource:
        return str(resource["urn"]).rpartition("::")[2]
    return str(resource["id"])
