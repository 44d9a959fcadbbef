"""Find pools of the stack file whose NodePool was deleted, or is being deleted, outside of the present `up`.

An interrupted `up` that removes a pool does not stop the deletion: Karpenter ends it as soon as the last pod of the
pool has ended. The engine does not see it, because it compares the stack file with its state only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kubernetes import client

from local.deploy.up_messages import NODE_POOL

NODE_POOLS = ("karpenter.sh", "v1", "nodepools")


class PoolDeletingError(Exception):
    """A pool of the stack file is being deleted."""


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


def describe_missing(missing: Mapping[str, str]) -> str:
    """Return the message about the pools of `find_missing`."""
    return f"pool {', '.join(missing)}: the NodePool is not in the cluster; up creates it"


def refresh_targets(missing: Mapping[str, str]) -> list[str]:
    """Return the arguments of `pulumi refresh` for the pools of `find_missing`."""
    return [word for urn in missing.values() for word in ("--target", urn)]


def read_node_pools(api: client.ApiClient) -> list[Mapping[str, Any]]:
    """Return all NodePools of the cluster.

    Raises:
        kubernetes.client.exceptions.ApiException: The API server refused the request.
    """
    found: list[Mapping[str, Any]] = client.CustomObjectsApi(api).list_cluster_custom_object(*NODE_POOLS)[
        "items"
    ]
    return found
