"""Pods that ask for machines of a pool, within the restricted standard; their one process waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra import versions

JsonObject = dict[str, Any]


def holder(pool: str, devices: Mapping[str, str]) -> JsonObject:
    """A pod that needs a whole machine of a pool: all of its devices."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": "default"},
        "spec": _spec("main", _on(pool), {"limits": dict(devices)}),
    }


def ring(pool: str, devices: Mapping[str, str], priority_class: str, namespace: str) -> JsonObject:
    """An MPIJob of two workers, each on a whole machine of a pool; its launcher runs anywhere."""
    worker = _spec("mpi", {**_on(pool), "priorityClassName": priority_class}, {"limits": dict(devices)})
    replicas = {"Launcher": (1, _spec("mpi", {}, {})), "Worker": (2, worker)}
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


def _on(pool: str) -> JsonObject:
    return {
        "nodeSelector": {"karpenter.sh/nodepool": pool},
        "tolerations": [{"operator": "Exists"}],
    }


def _spec(name: str, where: JsonObject, resources: JsonObject) -> JsonObject:
    container = {
        "name": name,
        "image": versions.PLACEHOLDER_IMAGE,
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
