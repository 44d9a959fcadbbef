"""Create a pod with network tools, to test DNS and connections inside the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from .documents import pods
from .documents.pool import outside_pools_affinity

NAME: Final = "network-debug"
LABELS: Final = {"app.kubernetes.io/name": NAME}


@dataclass(frozen=True, kw_only=True)
class DebugPodArgs:
    """The pod's image."""

    image: str
    """An image with a shell and network tools, with its digest."""
    after: list[pulumi.Resource]


class DebugPod(pulumi.ComponentResource):
    """A pod with network tools.

    Creates the pod `network-debug-0` in the namespace `training`, where the DNS names of workers resolve:

        kubectl exec -it network-debug-0 -n training -- sh

    A network policy allows it to reach the pods of jobs; nothing can reach it. It runs as a user without privileges
    and without access to the Kubernetes API. It belongs to a StatefulSet: if its node is lost, it is created again
    on another node, with the same name.
    """

    def __init__(self, name: str, args: DebugPodArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:training:DebugPod", name, None, opts)
        k8s.apps.v1.StatefulSet(
            NAME,
            metadata={
                "name": NAME,
                "namespace": names.TRAINING_NAMESPACE,
                "labels": LABELS,
                # `up` does not wait for the pod, which may find no node.
                "annotations": {"pulumi.com/skipAwait": "true"},
            },
            spec={
                "replicas": 1,
                # The field is required, but the pod needs no Service.
                "serviceName": NAME,
                "selector": {"matchLabels": LABELS},
                "template": {"metadata": {"labels": LABELS}, "spec": spec(args.image)},
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
        )
        k8s.networking.v1.NetworkPolicy(
            NAME,
            metadata={"name": NAME, "namespace": names.TRAINING_NAMESPACE},
            spec=pods.jobs_from({"matchLabels": LABELS}),
            opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
        )
        self.register_outputs({"name": NAME})


def spec(image: str) -> dict[str, Any]:
    """Return the `spec` of the pod. It meets the restricted pod security standard and runs on no node of a pool."""
    return {
        **pods.helper_spec(),
        "affinity": outside_pools_affinity(),
        "containers": [
            {
                "name": "tools",
                "image": image,
                "command": ["sleep", "2147483647"],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "32Mi"},
                    "limits": {"memory": "128Mi"},
                },
                "securityContext": pods.container(),
            }
        ],
    }
