"""Build the messages of `up` that the engine does not print: what it waits for, and what it leaves unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes import client

NODE_POOL = "kubernetes:karpenter.sh/v1:NodePool"
STARTED_RUN = "pulumi-python:dynamic/settings:StartedRun"
POOL_LABEL = "karpenter.sh/nodepool"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"


def removed_pools(deployment: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the pools that are in the state and no longer in the stack file."""
    wanted = {each.get("name") for each in config.get("trainyard:pools") or [] if isinstance(each, Mapping)}
    there = [
        str(each["inputs"]["metadata"]["name"])
        for each in deployment.get("resources") or []
        if each["type"] == NODE_POOL
    ]
    return sorted(set(there) - wanted)


def waits(pool: str, nodes: list[Mapping[str, Any]], pods: list[Mapping[str, Any]]) -> str | None:
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
        f"pool {pool}: is no longer in the stack file, and its nodes run {shown}. Karpenter ends no node under such"
        " pods, so that this up waits until they end. Ctrl-C stops it; the pool stays if it is in the stack file again"
    )


def read_waits(api: client.ApiClient, pools: list[str]) -> list[str]:
    """Return the messages of `waits` for these pools, from the cluster behind `api`.

    Raises:
        kubernetes.client.exceptions.ApiException: The API server refused the request.
    """
    core = client.CoreV1Api(api)
    nodes = api.sanitize_for_serialization(core.list_node())["items"]
    pods = api.sanitize_for_serialization(core.list_pod_for_all_namespaces())["items"]
    return [said for pool in pools if (said := waits(pool, nodes, pods))]


def late_settings(deployment: Mapping[str, Any]) -> str | None:
    """Return the message in the state about settings that changed after their run started; None if there is none."""
    for each in deployment.get("resources") or []:
        if each["type"] == STARTED_RUN and (said := (each.get("inputs") or {}).get("late")):
            return str(said)
    return None


def job_gone(run_id: str, job: str, namespace: str) -> str:
    """Return the message for a run whose Job was deleted. A run ID can be used only once."""
    return (
        f"run {run_id}: its Job {namespace}/{job} was deleted, which ended the run; up does not start it again. Set"
        " trainyard:training.runId to another name to start a run"
    )
