"""Build the messages of `up` that the engine does not print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes import client

NODE_POOL = "kubernetes:karpenter.sh/v1:NodePool"
STARTED_RUN = "pulumi-python:dynamic/settings:StartedRun"
POOL_LABEL = "karpenter.sh/nodepool"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"


def removed_pools(deployment: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the pools that are in the state but not in the stack file."""
    configured = {
        each.get("name") for each in config.get("trainyard:pools") or [] if isinstance(each, Mapping)
    }
    deployed = [
        str(each["inputs"]["metadata"]["name"])
        for each in deployment.get("resources") or []
        if each["type"] == NODE_POOL
    ]
    return sorted(set(deployed) - configured)


def removal_wait(pool: str, nodes: list[Mapping[str, Any]], pods: list[Mapping[str, Any]]) -> str | None:
    """Return a message about the pods that delay the removal of a pool; None if there are none.

    Args:
        pool: The pool's name.
        nodes: All nodes of the cluster.
        pods: All pods of the cluster.
    """
    own = {
        each["metadata"]["name"]
        for each in nodes
        if (each["metadata"].get("labels") or {}).get(POOL_LABEL) == pool
    }
    holders = sorted(
        f"{each['metadata']['namespace']}/{each['metadata']['name']}"
        for each in pods
        if each["spec"].get("nodeName") in own
        and (each.get("status") or {}).get("phase") in ("Pending", "Running")
        and (each["metadata"].get("annotations") or {}).get(DO_NOT_DISRUPT) == "true"
    )
    if not holders:
        return None
    shown = ", ".join(holders[:3]) + (f" and {len(holders) - 3} more" if len(holders) > 3 else "")
    return (
        f"pool {pool}: is not in the stack file, but its nodes run {shown}. Karpenter does not disrupt these, so up"
        " waits for their end. To keep the pool, press Ctrl-C and add the pool to the stack file again"
    )


def read_removal_waits(api: client.ApiClient, pools: list[str]) -> list[str]:
    """Return the messages of `removal_wait` for these pools, from the cluster behind `api`.

    Raises:
        kubernetes.client.exceptions.ApiException: The API server refused the request.
    """
    core = client.CoreV1Api(api)
    nodes = api.sanitize_for_serialization(core.list_node())["items"]
    pods = api.sanitize_for_serialization(core.list_pod_for_all_namespaces())["items"]
    return [message for pool in pools if (message := removal_wait(pool, nodes, pods))]


def read_changed_settings(deployment: Mapping[str, Any]) -> str | None:
    """Return the message in the state about settings that changed after their run started; None if there is none."""
    for each in deployment.get("resources") or []:
        if each["type"] == STARTED_RUN and (message := (each.get("inputs") or {}).get("late")):
            return str(message)
    return None


def deleted_job_message(run_id: str, job: str, namespace: str) -> str:
    """Return the message for a run whose Job was deleted. A run ID can be used only once."""
    return (
        f"run {run_id}: ended because its Job {namespace}/{job} was deleted. To start another run, set"
        " trainyard:training.runId to another name"
    )
