"""Compare the pools of the stack file and of the state with the cluster. Entry point: `check_pools`.

An interrupted `up` that removes a pool does not stop the deletion: Karpenter ends it as soon as the last pod of the
pool has ended. The engine does not see it, because it compares the stack file with its state only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainyard.cli.engine import EngineError
from trainyard.cli.up_messages import NODE_POOL, read_removal_waits, removed_pools
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
# Nothing is reported of a cluster that does not answer, so `up` does not wait long for it.
RETRY = RetryPolicy(timeout=3.0)


class PoolDeletingError(Exception):
    """A pool of the stack file is being deleted."""


def check_pools(
    connect: Callable[[], Client],
    deployment: Mapping[str, Any],
    config: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, str]:
    """Report what still uses pools that will be removed, and the pools of `find_missing`. Return the latter.

    If the cluster does not answer, nothing is reported.

    Args:
        connect: Returns a client of the cluster.
        deployment: The state of the stack.
        config: The settings of the stack file.
        say: Prints a line.

    Raises:
        PoolDeletingError: A pool of the stack file is being deleted.
    """
    removed = removed_pools(deployment, config)
    try:
        client = connect()
        for line in read_removal_waits(client, removed, deployment) if removed else ():
            say(line)
        node_pools = client.list_objects(NODE_POOLS)
    except (EngineError, ApiError, ApiUnavailable, OSError):
        return {}
    if missing := find_missing(deployment, config, node_pools):
        say(f"pool {', '.join(missing)}: the NodePool is not in the cluster; up creates it")
    return missing


def find_missing(
    deployment: Mapping[str, Any], config: Mapping[str, Any], node_pools: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the URNs of the pools that are in the state and the stack file, but not in the cluster, by name.

    Args:
        deployment: The state of the stack.
        config: The settings of the stack file.
        node_pools: All NodePools of the cluster.

    Raises:
        PoolDeletingError: A pool of the stack file is being deleted.
    """
    configured = {
        str(each.get("name")) for each in config.get("trainyard:pools") or [] if isinstance(each, Mapping)
    }
    existing = {str(each["metadata"]["name"]): each["metadata"] for each in node_pools}
    for name in sorted(configured & existing.keys()):
        if existing[name].get("deletionTimestamp"):
            raise PoolDeletingError(
                f"pool {name}: is being deleted, because an earlier up removed it, and waits for the pods on its nodes."
                " Run up again when `kubectl get nodepools` no longer lists it. Then up creates it"
            )
    return {
        name: str(each["urn"])
        for each in deployment.get("resources") or []
        if each["type"] == NODE_POOL
        and (name := str(each["inputs"]["metadata"]["name"])) in configured - existing.keys()
    }


def refresh_targets(missing: Mapping[str, str]) -> list[str]:
    """Return the arguments of `pulumi refresh` for the pools of `find_missing`."""
    return [word for urn in missing.values() for word in ("--target", urn)]
