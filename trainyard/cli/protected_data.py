"""Check and delete the data that a stack protects (`trainyard:protectData`).

The engine's state says what is protected, because the stack file may have changed since the last `up`.
`with_deletion_allowed` changes a state so that kept data can be deleted without a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.cli.errors import CommandError
from trainyard.cli.make_variables import user_command, user_variable

# The names of resource types in messages. Types that only configure one of these are not listed.
NAMED = {
    "aws:s3/bucket:Bucket": "bucket",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "file system",
    "aws:ecr/repository:Repository": "repository",
    "aws:kms/key:Key": "key",
}
# The ID of a key is random, so messages contain the program's name for it.
KEY = "aws:kms/key:Key"
CLUSTERS = ("aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup")
# The inputs that also delete the content of a resource. The provider reads them from the state at a deletion.
WITH_CONTENT = {
    "aws:s3/bucket:Bucket": {"forceDestroy": True},
    "aws:ecr/repository:Repository": {"forceDelete": True},
    "aws:fsx/lustreFileSystem:LustreFileSystem": {"skipFinalBackup": True},
}
# The engine keeps protected resources and their dependencies (pulumi/pulumi, cmd/pulumi/operations/destroy.go).
EXCEPT_DATA = ("--exclude-protected",)


def protected(deployment: Mapping[str, Any]) -> list[str]:
    """Return the protected resources in a state, such as `bucket models-1a2b3c4`."""
    resources = [each for each in deployment.get("resources") or [] if each.get("protect")]
    names = [
        f"{NAMED[each['type']]} {_name(each)}" for kind in NAMED for each in resources if each["type"] == kind
    ]
    return names or [_name(each) for each in resources]


def check(deployment: Mapping[str, Any], stack: str, cloud: str, keep_data: bool) -> list[str]:
    """Return the resources that a destroy must keep. `cloud` is local or aws.

    Raises:
        CommandError: `keep_data` is not set and there is protected data, or it is set and there is none.
    """
    found = protected(deployment)
    up, down, keep, delete = _commands(stack, cloud)
    variable = user_variable("KEEP_DATA")
    if found and not keep_data and not has_cluster(deployment):
        raise CommandError(
            f"stack {stack}: only its data is left: {', '.join(found)}; nothing was changed. To delete the data, run "
            f"`{delete}`; to use it again, run `{up}`"
        )
    if found and not keep_data:
        raise CommandError(
            f"stack {stack} protects its data: {', '.join(found)}; nothing was changed. "
            f"`{keep}` destroys all but that; to destroy it as well, set "
            f"trainyard:protectData to false, then `{up}` and `{down}`"
        )
    if keep_data and not found:
        raise CommandError(
            f"stack {stack} protects no data that {variable} could keep; nothing was changed. To keep it, set "
            f"trainyard:protectData to true and `{up}` first; to destroy it, leave {variable} out"
        )
    return found


def _commands(stack: str, cloud: str) -> tuple[str, str, str, str]:
    """Return the commands that deploy, destroy, destroy all but the data, and delete the data."""
    up, down = user_command("up", stack, cloud), user_command("down", stack, cloud)
    keep = user_command("down", stack, cloud, KEEP_DATA="1")
    return up, down, keep, user_command("delete-data", stack, cloud, CONFIRM=stack)


def has_cluster(deployment: Mapping[str, Any]) -> bool:
    """Return whether the state has a cluster, or objects in an existing cluster."""
    return any(
        each["type"] in CLUSTERS or str(each["type"]).startswith("kubernetes:")
        for each in deployment.get("resources") or []
    )


def check_deletion(deployment: Mapping[str, Any], stack: str, cloud: str, confirmed: str) -> list[str]:
    """Return the kept data to delete.

    Raises:
        CommandError: There is no kept data, the stack is up, or `confirmed` is not the stack's name.
    """
    found = protected(deployment)
    _, down, keep, delete = _commands(stack, cloud)
    if not found:
        raise CommandError(
            f"stack {stack}: keeps no data; nothing was changed. To destroy the stack, run `{down}`"
        )
    if has_cluster(deployment):
        raise CommandError(
            f"stack {stack}: is up, so its data may be in use; nothing was changed. First destroy the rest with "
            f"`{keep}`, then run `{delete}`"
        )
    if confirmed != stack:
        raise CommandError(
            f"stack {stack}: this deletes {', '.join(found)} with all content; nothing was changed. To confirm, run "
            f"`{delete}`"
        )
    return found


def with_deletion_allowed(exported: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state from `pulumi stack export` without protection, in which a destroy deletes all content."""
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
