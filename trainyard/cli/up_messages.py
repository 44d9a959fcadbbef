"""Build the messages of `up` that the engine does not print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.k8s import names
from trainyard.k8s.client import ApiError, Client

NODE_POOL = "kubernetes:karpenter.sh/v1:NodePool"
STARTED_RUN = "pulumi-python:dynamic/settings:StartedRun"
QUEUES = f"/apis/{names.TORCHRUN_GROUP}/{names.TORCHRUN_VERSION}/{names.TORCHRUN_QUEUES}"
QUEUE_TYPE = f"kubernetes:{names.TORCHRUN_GROUP}/{names.TORCHRUN_VERSION}:{names.TORCHRUN_QUEUE_KIND}"


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


def removal_waits(
    pool: str,
    nodes: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    queues: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Return messages about what still uses a pool that is removed.

    Args:
        pool: The pool's name.
        nodes: All nodes of the cluster.
        pods: All pods of the cluster.
        queues: The TorchrunQueues that stay.
    """
    own = {
        each["metadata"]["name"]
        for each in nodes
        if (each["metadata"].get("labels") or {}).get(names.LABEL_NODEPOOL) == pool
    }
    alive = [
        each for each in pods if (each.get("status") or {}).get("phase") in ("Pending", "Running")
    ]  # a pod that has ended keeps its node's name
    holders = [
        each
        for each in alive
        if each["spec"].get("nodeName") in own
        and (each["metadata"].get("annotations") or {}).get(names.DO_NOT_DISRUPT) == "true"
    ]
    pending = [
        each
        for each in alive
        if not each["spec"].get("nodeName")
        and (each["spec"].get("nodeSelector") or {}).get(names.LABEL_NODEPOOL) == pool
    ]
    stranded = [each for each in queues or [] if _pool_of(each) == pool]
    found = []
    if holders:
        found.append(
            f"pool {pool}: is not in the stack file, but its nodes run {_names(holders)}. Karpenter does not disrupt"
            " these, so up waits for their end. To keep the pool, press Ctrl-C and add the pool to the stack file again"
        )
    if pending:
        found.append(
            f"pool {pool}: is not in the stack file, but {_names(pending)} wait for its nodes and get none after the"
            " pool is removed. Add the pool to the stack file again, or delete their runs and jobs"
        )
    if stranded:
        found.append(
            f"pool {pool}: is not in the stack file, but TorchrunQueue {_names(stranded)} names it, so that new jobs of"
            " the queue wait. Set another pool in the queue, or delete the queue"
        )
    return found


def _pool_of(queue: Mapping[str, Any]) -> Any:
    return ((queue.get("spec") or {}).get("scheduling") or {}).get("pool")


def _names(items: list[Mapping[str, Any]]) -> str:
    names = sorted(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in items)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_removal_waits(client: Client, pools: list[str], deployment: Mapping[str, Any]) -> list[str]:
    """Return the messages of `removal_waits` for these pools, from the cluster behind `client`.

    Queues in the state `deployment` are the stack's own, whose settings are checked with the stack file.

    Raises:
        ApiError: The API server refused a request.
        ApiUnavailable: The API server does not answer.
    """
    nodes, pods = client.list_objects("/api/v1/nodes"), client.list_objects("/api/v1/pods")
    own = {
        (each["inputs"]["metadata"].get("namespace"), each["inputs"]["metadata"]["name"])
        for each in deployment.get("resources") or []
        if each["type"] == QUEUE_TYPE
    }
    queues = [
        each
        for each in _queues(client)
        if (each["metadata"]["namespace"], each["metadata"]["name"]) not in own
    ]
    return [message for pool in pools for message in removal_waits(pool, nodes, pods, queues)]


def _queues(client: Client) -> list[dict[str, Any]]:
    """Return all TorchrunQueues; none in a cluster without their kind."""
    try:
        return client.list_objects(QUEUES)
    except ApiError as error:
        if error.status != 404:
            raise
        return []


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
