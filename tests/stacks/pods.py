"""Pods that ask for machines of a pool, within the restricted standard; what they run only waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.documents import versions

JsonObject = dict[str, Any]
PAUSE: JsonObject = {"image": versions.PLACEHOLDER_IMAGE}
# Can be entered: on the local machines a pause image is nothing that runs.
SLEEP: JsonObject = {"image": versions.DEBUG_IMAGE, "command": ["sleep", "86400"]}


def holder(pool: str, devices: Mapping[str, str]) -> JsonObject:
    """A pod that needs a whole machine of a pool: all of its devices."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": "default"},
        "spec": _spec("main", PAUSE, _on(pool), {"limits": dict(devices)}),
    }


def ring(pool: str, devices: Mapping[str, str], priority_class: str, namespace: str) -> JsonObject:
    """An MPIJob of two workers, each on a whole machine of a pool; its launcher runs anywhere."""
    where = {**_on(pool), "priorityClassName": priority_class}
    worker = _spec("mpi", SLEEP, where, {"limits": dict(devices)})
    replicas = {"Launcher": (1, _spec("mpi", PAUSE, {}, {})), "Worker": (2, worker)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MPIJob",
        "metadata": {"name": "ring", "namespace": namespace},
        "spec": {
            "mpiReplicaSpecs": {
                name: {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}
                for name, (count, spec) in replicas.items()
            }
        },
    }


def gang(queue: str, namespace: str, nodes: int, gpus: int) -> JsonObject:
    """A TorchrunJob on so many machines, with all GPUs of each that its queue has; its workers meet and end well."""
    return {
        "apiVersion": "torchrun.ai/v1alpha1",
        "kind": "TorchrunJob",
        "metadata": {"name": "gang", "namespace": namespace},
        "spec": {"jobQueue": queue, "numGPUs": gpus * nodes, "numNodes": nodes, "command": "python -c pass"},
    }


def _on(pool: str) -> JsonObject:
    return {
        "nodeSelector": {"karpenter.sh/nodepool": pool},
        "tolerations": [{"operator": "Exists"}],
    }


def _spec(name: str, program: JsonObject, where: JsonObject, resources: JsonObject) -> JsonObject:
    container = {
        "name": name,
        **program,
        "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        **where,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
