"""Warm nodes: nodes that Karpenter keeps without a job, so that the next job starts at once.

Their pods request almost nothing, so that placeholders and workers fit on the same node. Every job would have to
preempt a pod as large as a worker, and its Deployment would at once request another node in place of the one
that the job took.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from .documents import JsonObject, pods
from .documents.pool import Pool


@dataclass(frozen=True, kw_only=True)
class WarmNodesArgs:
    """The pools that keep nodes without a job."""

    pools: tuple[Pool, ...]
    image: str
    """A pause image."""
    after: list[pulumi.Resource]


class WarmNodes(pulumi.ComponentResource):
    """The pods that keep warm nodes.

    Creates, if a pool has `warm_nodes`:

    - a priority class below that of all other pods of the stack, which preempts nothing;
    - for each such pool, a Deployment whose pods make Karpenter keep this many nodes, with or without a job.

    `up` does not wait for the nodes: if EC2 lacks capacity, they start when it has some.
    """

    def __init__(self, name: str, args: WarmNodesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:karpenter:WarmNodes", name, None, opts)
        self.objects: list[pulumi.Resource] = []
        """The priority class and the Deployments."""
        warm_pools = [pool for pool in args.pools if pool.warm_nodes]
        if warm_pools:
            self.objects.append(
                k8s.scheduling.v1.PriorityClass(
                    names.WARM_PRIORITY_CLASS,
                    metadata={"name": names.WARM_PRIORITY_CLASS},
                    value=names.WARM_PRIORITY,
                    preemption_policy="Never",
                    global_default=False,
                    description="Pods that keep nodes of a pool without a job",
                    opts=pulumi.ResourceOptions(parent=self),
                )
            )
        for pool in warm_pools:
            self.objects.append(
                k8s.apps.v1.Deployment(
                    name_of(pool),
                    metadata={
                        "name": name_of(pool),
                        "namespace": names.TRAINING_NAMESPACE,
                        "labels": labels(pool),
                        "annotations": {"pulumi.com/skipAwait": "true"},
                    },
                    spec=deployment(pool, args.image),
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[*args.after, self.objects[0]]),
                )
            )
        self.register_outputs({"pools": [pool.name for pool in warm_pools]})


def name_of(pool: Pool) -> str:
    """Return the name of the pool's Deployment, in the training namespace."""
    return f"warm-{pool.name}"


def labels(pool: Pool) -> dict[str, str]:
    """Return the labels of the pool's warm pods."""
    return {names.LABEL_ROLE: names.ROLE_WARM, names.LABEL_POOL: pool.name}


def warm_pod_affinity(pool: Pool) -> JsonObject:
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
        "affinity": {"podAffinity": _with(labels(pool))},
    }


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
                "affinity": {"podAntiAffinity": _with(mine)},
                **pods.helper_spec(),
                "containers": [
                    {
                        "name": "warm",
                        "image": image,
                        "resources": {
                            "requests": pods.SMALL_REQUESTS,
                            "limits": {"memory": pods.SMALL_REQUESTS["memory"]},
                        },
                        "securityContext": pods.container(),
                    }
                ],
            },
        },
    }


def _with(labels: dict[str, str]) -> JsonObject:
    """Return the affinity to nodes with pods that have these labels."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
