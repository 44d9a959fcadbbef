"""Warm nodes: nodes that Karpenter keeps without a job, so that the next job starts at once."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from .documents.pool import Pool
from .documents.warm_nodes import deployment, labels, name_of


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
        kept = [pool for pool in args.pools if pool.warm_nodes]
        if kept:
            self._priority()
        for pool in kept:
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
        self.register_outputs({"pools": [pool.name for pool in kept]})

    def _priority(self) -> None:
        self.objects.append(
            k8s.scheduling.v1.PriorityClass(
                names.WARM_PRIORITY_CLASS,
                metadata={"name": names.WARM_PRIORITY_CLASS},
                value=names.WARM_PRIORITY,
                preemption_policy="Never",
                global_default=False,
                description="Pods that keep machines of a pool without a job",
                opts=pulumi.ResourceOptions(parent=self),
            )
        )
