"""Compare the pools of the stack file and of the state with the cluster. Entry point: `check_deployed_pools`.

An interrupted `up` that removes a pool does not stop the deletion: Karpenter ends it as soon as the last pod of the
pool has ended. The engine does not see it, because it compares the stack file with its state only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.cli.engine import EngineError
from trainyard.cli.errors import CommandError
from trainyard.cli.output import OUTPUT
from trainyard.cli.runs import DeployedStack
from trainyard.cli.summary import stack_outputs
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy

NODE_POOL = "kubernetes:karpenter.sh/v1:NodePool"
QUEUES = f"/apis/{names.TORCHRUN_GROUP}/{names.TORCHRUN_VERSION}/{names.TORCHRUN_QUEUES}"
QUEUE_TYPE = f"kubernetes:{names.TORCHRUN_GROUP}/{names.TORCHRUN_VERSION}:{names.TORCHRUN_QUEUE_KIND}"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
# Nothing is reported of a cluster that does not answer, so `up` does not wait long for it.
RETRY = RetryPolicy(timeout=3.0)


def check_deployed_pools(
    stack: DeployedStack, deployment: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, str]:
    """Report what still uses pools that will be removed, and the pools of `find_missing`. Return the latter.

    Of a stack without a cluster, and of a cluster that does not answer, nothing is reported.

    Args:
        deployment: The stack's state.
        config: The settings of the stack file.

    Raises:
        CommandError: A pool of the stack file is being deleted.
    """
    outputs = stack_outputs(deployment)
    if "clusterName" not in outputs:
        return {}
    removed = removed_pools(deployment, config)
    try:
        with stack.kubeconfig(outputs) as file:
            client, _ = kubeconfigs.connect(str(file), None, RETRY)
            for line in read_removal_waits(client, removed, deployment) if removed else ():
                OUTPUT.report(line)
            node_pools = client.list_objects(NODE_POOLS)
    except (EngineError, ApiError, ApiUnavailable, OSError):
        return {}
    if missing := find_missing(deployment, config, node_pools):
        OUTPUT.report(f"pool {', '.join(missing)}: the NodePool is not in the cluster; up creates it")
    return missing


def find_missing(
    deployment: Mapping[str, Any], config: Mapping[str, Any], node_pools: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the URNs of the pools that are in the state and the stack file, but not in the cluster, by name.

    Raises:
        CommandError: A pool of the stack file is being deleted.
    """
    configured = _configured(config)
    existing = {str(each["metadata"]["name"]): each["metadata"] for each in node_pools}
    for name in sorted(configured & existing.keys()):
        if existing[name].get("deletionTimestamp"):
            raise CommandError(
                f"pool {name}: is being deleted, because an earlier up removed it, and waits for the pods on its nodes."
                " Run up again when `kubectl get nodepools` no longer lists it. Then up creates it"
            )
    absent = configured - existing.keys()
    return {name: urn for name, urn in _deployed(deployment).items() if name in absent}


def _configured(config: Mapping[str, Any]) -> set[str]:
    """Return the names of the pools in the stack file."""
    pools = config.get("trainyard:pools") or []
    return {str(each.get("name")) for each in pools if isinstance(each, Mapping)}


def _deployed(deployment: Mapping[str, Any]) -> dict[str, str]:
    """Return the URNs of the pools in the state, by name."""
    resources = deployment.get("resources") or []
    return {
        str(each["inputs"]["metadata"]["name"]): str(each["urn"])
        for each in resources
        if each["type"] == NODE_POOL
    }


def refresh_targets(missing: Mapping[str, str]) -> list[str]:
    """Return the arguments of `pulumi refresh` for the pools of `find_missing`."""
    return [word for urn in missing.values() for word in ("--target", urn)]


def removed_pools(deployment: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return the pools that are in the state but not in the stack file."""
    return sorted(_deployed(deployment).keys() - _configured(config))


def removal_waits(
    pool: str,
    nodes: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    queues: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Return messages about what still uses a pool that is removed. `queues` are the TorchrunQueues that stay."""
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
