"""PyTorchJobs of Kubeflow's training operator v1 (github.com/kubeflow/training-operator v1.9.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from launcher import manifests, observe
from launcher.backends.backend import Backend
from launcher.manifests import JsonObject
from launcher.observe import Training
from launcher.request import Request
from trainyard.k8s import names

_API_VERSION: Final = "kubeflow.org/v1"
_KIND: Final = "PyTorchJob"


def build(request: Request, nodes: int, reason: str, restart: int = 0) -> JsonObject:
    """Return the PyTorchJob for exactly this number of nodes: a Master and Workers, or only Workers if elastic.

    The restart policy is Never: the operator would restart single pods, but in a static world the other workers would
    wait forever for the lost one. So the launcher restarts all of them. There is no `backoffLimit`, because at the
    limit the operator deletes the pods with their logs and exit codes (ReconcileJobs in
    pkg/controller.v1/common/job.go). Finished pods are kept for their logs.

    Args:
        restart: How many training jobs the run had before.
    """
    replicas: JsonObject = {"Master": _replica(request, nodes, 1, restart, leads=True)}
    if nodes > 1:
        replicas["Worker"] = _replica(request, nodes, nodes - 1, restart, leads=False)
    elastic: JsonObject = {}
    if request.shape == names.SHAPE_ELASTIC:
        # torchrun's agents decide which of them has rank 0.
        replicas = {"Worker": _replica(request, nodes, nodes, restart, leads=True)}
        elastic = {"elasticPolicy": _elastic(request, nodes, restart)}
    run_policy: JsonObject = {"cleanPodPolicy": "None"}
    if request.active_deadline_seconds is not None:
        run_policy["activeDeadlineSeconds"] = request.active_deadline_seconds
    return {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": manifests.training_metadata(request, nodes, reason, restart),
        "spec": {
            # `auto` would make WORLD_SIZE count nodes instead of processes (kubeflow/trainer#1790).
            "nprocPerNode": str(request.worker.processes_per_node),
            **elastic,
            "runPolicy": run_policy,
            "pytorchReplicaSpecs": replicas,
        },
    }


def _elastic(request: Request, nodes: int, restart: int) -> JsonObject:
    """Return the elasticPolicy: torchrun's agents continue with fewer workers, or restart processes.

    It has no `metrics`, because with them the operator creates an autoscaler that scales the job by its load
    (github.com/kubeflow/training-operator v1.9.4, pkg/controller.v1/pytorch/hpa.go).
    """
    return {
        "minReplicas": min(request.min_nodes, nodes),
        "maxReplicas": nodes,
        "maxRestarts": request.max_restarts,
        "rdzvBackend": "c10d",
        "rdzvId": manifests.rendezvous_id(request, restart),
    }


def _rendezvous_environment(request: Request, nodes: int, restart: int) -> dict[str, str]:
    """Return the variables for the rendezvous that the operator does not set."""
    if request.shape == names.SHAPE_ELASTIC:
        # After a change of the members, the others would connect to the store of an agent that is gone
        # (pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {names.ENV_EXPECTED_NODES: str(nodes), "PET_RDZV_ID": manifests.rendezvous_id(request, restart)}


def _replica(request: Request, nodes: int, replicas: int, restart: int, *, leads: bool) -> JsonObject:
    """Return one replica spec. `leads` is whether one of its pods may have rank 0."""
    rendezvous = _rendezvous_environment(request, nodes, restart)
    template = manifests.worker_template(
        request, restart, rendezvous, container_name=names.TRAINING_CONTAINER, leads=leads
    )
    return {"replicas": replicas, "restartPolicy": "Never", "template": template}


def parse(item: Mapping[str, Any], run_id: str) -> Training:
    """Convert a PyTorchJob."""
    spec = item.get("spec", {})
    replicas: Iterable[Mapping[str, Any]] = spec.get("pytorchReplicaSpecs", {}).values()
    return observe.training(
        item,
        run_id,
        nodes=sum(int(replica.get("replicas") or 0) for replica in replicas),
        outcomes={"Succeeded": "Succeeded", "Failed": "Failed"},
        suspended=bool((spec.get("runPolicy") or {}).get("suspend")),
    )


BACKEND: Final = Backend(
    kind=_KIND,
    operator="training operator",
    api_version=_API_VERSION,
    resource="pytorchjobs",
    suspend_field="spec.runPolicy.suspend",
    container=names.TRAINING_CONTAINER,
    # ReconcileJobs in pkg/controller.v1/common/job.go. It deletes the pods before that.
    deadline_message="active longer than specified deadline",
    build=build,
    parse=parse,
)
