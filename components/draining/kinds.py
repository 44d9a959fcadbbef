"""The kinds of objects that a drain looks at, and which of them are its own to delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainyard.k8s.names import (
    LABEL_NODEPOOL,
    LABEL_ROLE,
    ROLE_LAUNCHER,
    TORCHRUN_GROUP,
    TORCHRUN_JOBS,
    TORCHRUN_QUEUES,
    TORCHRUN_VERSION,
    TRAINING_NAMESPACE,
)

KARPENTER: Final = "karpenter.sh"
KARPENTER_AWS: Final = "karpenter.k8s.aws"
EVERYWHERE: Final = "*"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of object: where it is served, and in which namespace.

    `namespace` None: cluster-wide; `EVERYWHERE`: in all namespaces, names then are `<namespace>/<name>`.
    `labels` is the selector of those that are meant.
    """

    group: str
    version: str
    plural: str
    namespace: str | None = None
    labels: str | None = None


# Selected by role, because a Job from the manifest in the outputs has another run's name.
JOBS: Final = Kind(
    group="batch",
    version="v1",
    plural="jobs",
    namespace=TRAINING_NAMESPACE,
    labels=f"{LABEL_ROLE}={ROLE_LAUNCHER}",
)
PYTORCH_JOBS: Final = Kind(
    group="kubeflow.org", version="v1", plural="pytorchjobs", namespace=TRAINING_NAMESPACE
)
MPI_JOBS: Final = Kind(group="kubeflow.org", version="v1", plural="mpijobs", namespace=TRAINING_NAMESPACE)
# In all namespaces: the stack's CustomResourceDefinitions are deleted with all objects.
GANGS: Final = Kind(
    group=TORCHRUN_GROUP, version=TORCHRUN_VERSION, plural=TORCHRUN_JOBS, namespace=EVERYWHERE
)
QUEUES: Final = Kind(
    group=TORCHRUN_GROUP, version=TORCHRUN_VERSION, plural=TORCHRUN_QUEUES, namespace=EVERYWHERE
)
# Deployments of warm nodes: deleted before their pods, which would come back otherwise.
HOLDERS: Final = Kind(
    group="apps", version="v1", plural="deployments", namespace=TRAINING_NAMESPACE, labels=LABEL_ROLE
)
PODS: Final = Kind(group="", version="v1", plural="pods", namespace=TRAINING_NAMESPACE, labels=LABEL_ROLE)
SERVICES: Final = Kind(group="", version="v1", plural="services", namespace=EVERYWHERE)
INGRESSES: Final = Kind(group="networking.k8s.io", version="v1", plural="ingresses", namespace=EVERYWHERE)
NODE_POOLS: Final = Kind(group=KARPENTER, version="v1", plural="nodepools")
NODE_CLAIMS: Final = Kind(group=KARPENTER, version="v1", plural="nodeclaims", labels=LABEL_NODEPOOL)
NODE_CLASSES: Final = Kind(group=KARPENTER_AWS, version="v1", plural="ec2nodeclasses")
NODES: Final = Kind(group="", version="v1", plural="nodes", labels=LABEL_NODEPOOL)
ALL_PODS: Final = Kind(group="", version="v1", plural="pods", namespace=EVERYWHERE)
# Owners of pods, in all namespaces.
DEPLOYMENTS: Final = Kind(group="apps", version="v1", plural="deployments", namespace=EVERYWHERE)
REPLICA_SETS: Final = Kind(group="apps", version="v1", plural="replicasets", namespace=EVERYWHERE)
STATEFUL_SETS: Final = Kind(group="apps", version="v1", plural="statefulsets", namespace=EVERYWHERE)
DAEMON_SETS: Final = Kind(group="apps", version="v1", plural="daemonsets", namespace=EVERYWHERE)
EVERY_JOB: Final = Kind(group="batch", version="v1", plural="jobs", namespace=EVERYWHERE)
CRON_JOBS: Final = Kind(group="batch", version="v1", plural="cronjobs", namespace=EVERYWHERE)
VOLUMES: Final = Kind(group="", version="v1", plural="persistentvolumes")
VOLUME_CLAIMS: Final = Kind(group="", version="v1", plural="persistentvolumeclaims", namespace=EVERYWHERE)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is the stack's own in a cluster.

    `pools` None: the cluster is the stack's, and so is everything in it. Else only these pools, their machines and
    the namespace `training` are; with `torchrun` the definitions of torchrun jobs and queues, and so all of these.
    """

    pools: frozenset[str] | None = None
    torchrun: bool = False

    def asks_for(self, kind: Kind) -> bool:
        """Whether there may be anything of the stack's of a kind: who may not list others' need not to."""
        return self.pools is None or self.torchrun or kind not in (GANGS, QUEUES)

    def has(self, kind: Kind, item: Mapping[str, Any]) -> bool:
        """Whether an object that the API served is one that the drain may delete."""
        metadata = item["metadata"]
        if kind == SERVICES and item.get("spec", {}).get("type") != "LoadBalancer":
            return False
        if kind == VOLUMES and not _is_made_to_go(item):
            return False
        if self.pools is None:
            return True
        if kind in (GANGS, QUEUES):
            return self.torchrun
        if kind in (NODE_POOLS, NODE_CLASSES):
            return metadata["name"] in self.pools
        if kind in (NODE_CLAIMS, NODES):
            return metadata.get("labels", {}).get(LABEL_NODEPOOL) in self.pools
        if kind == VOLUMES:
            claim = item.get("spec", {}).get("claimRef") or {}
            return bool(claim.get("namespace") == TRAINING_NAMESPACE)
        return kind.namespace != EVERYWHERE or bool(metadata.get("namespace") == TRAINING_NAMESPACE)


def _is_made_to_go(volume: Mapping[str, Any]) -> bool:
    """Whether a volume was made for a claim by a driver and goes with that claim; a static one stays."""
    made = metadata_of(volume).get("annotations", {}).get("pv.kubernetes.io/provisioned-by")
    return bool(made) and volume.get("spec", {}).get("persistentVolumeReclaimPolicy") == "Delete"


def metadata_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's metadata."""
    metadata: Mapping[str, Any] = item.get("metadata") or {}
    return metadata


def holds_a_node(pod: Mapping[str, Any], nodes: frozenset[str]) -> bool:
    """Whether a pod keeps one of the nodes from going: Karpenter waits for `do-not-disrupt` and for disruption budgets.

    Pods of a DaemonSet or of the node itself, and those that have ended, hold nothing.
    """
    if pod.get("spec", {}).get("nodeName") not in nodes:
        return False
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = {owner.get("kind") for owner in metadata_of(pod).get("ownerReferences", [])}
    return not owners & {"DaemonSet", "Node"}


def name_of(kind: Kind, item: Mapping[str, Any]) -> str:
    """The name by which the drain speaks of an object: with its namespace where the kind is in all of them."""
    metadata = metadata_of(item)
    return f"{metadata['namespace']}/{metadata['name']}" if kind.namespace == EVERYWHERE else metadata["name"]
