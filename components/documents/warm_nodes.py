"""Pods that keep warm nodes of a pool. Pure: no Pulumi.

They request almost nothing, so that placeholders and workers fit on the same node. Every job would have to
preempt a pod as large as a worker, and its Deployment would at once request another node in place of the one
that the job took.
"""

from __future__ import annotations

from typing import Any, Final

from trainyard.k8s import names

from . import pods
from .pool import Pool

JsonObject = dict[str, Any]

# One thousandth of a core: without requests, the pod would be the first to be evicted from a full node.
REQUESTS: Final = {"cpu": "1m", "memory": "16Mi"}
SAME_MACHINE: Final = "kubernetes.io/hostname"


def name_of(pool: Pool) -> str:
    """Return the name of the pool's Deployment, in the training namespace."""
    return f"warm-{pool.name}"


def labels(pool: Pool) -> dict[str, str]:
    """Return the labels of the pool's warm pods."""
    return {names.LABEL_ROLE: names.ROLE_WARM, names.LABEL_POOL: pool.name}


def beside(pool: Pool) -> JsonObject:
    """Return the parts of a pod's `spec` that place it beside a warm pod, with the same priority.

    Such a pod keeps no node of the pool by itself. Karpenter calls a node empty if it only has pods of DaemonSets
    (https://karpenter.sh/docs/concepts/disruption/). A warm pod that is replaced comes back beside this pod, because
    the scheduler prefers nodes whose pods require it (`hardPodAffinityWeight` of
    https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/).
    """
    return {
        "priorityClassName": names.WARM_PRIORITY_CLASS,
        "nodeSelector": {names.LABEL_NODEPOOL: pool.name},
        "tolerations": pool.tolerations,
        "affinity": {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [_on_the_machine_of(labels(pool))]
            }
        },
    }


def _on_the_machine_of(pods: dict[str, str]) -> JsonObject:
    return {"topologyKey": SAME_MACHINE, "labelSelector": {"matchLabels": pods}}


def deployment(pool: Pool, image: str) -> JsonObject:
    """Return the `spec` of the Deployment: `pool.warm_nodes` pods, one per node of the pool."""
    mine = labels(pool)
    return {
        "replicas": pool.warm_nodes,
        "selector": {"matchLabels": mine},
        # Never more pods than `warm_nodes`: one more pod would launch one more node.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}},
        # A pod that waits for capacity is no failure of the Deployment; EC2 may lack it for hours.
        "progressDeadlineSeconds": 86400,
        "template": {
            "metadata": {"labels": mine},
            "spec": {
                "priorityClassName": names.WARM_PRIORITY_CLASS,
                "nodeSelector": {names.LABEL_NODEPOOL: pool.name},
                "tolerations": pool.tolerations,
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [_on_the_machine_of(mine)]
                    }
                },
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 1,
                "securityContext": pods.pod(),
                "containers": [
                    {
                        "name": "warm",
                        "image": image,
                        "resources": {"requests": REQUESTS, "limits": {"memory": REQUESTS["memory"]}},
                        "securityContext": pods.container(),
                    }
                ],
            },
        },
    }
