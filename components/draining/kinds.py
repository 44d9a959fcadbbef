"""The kinds of objects that a drain reads, and which of these objects it may delete."""

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
    """A kind of object: its API path and its namespace.

    `namespace` None: cluster-wide; `EVERYWHERE`: in all namespaces, names are then `<namespace>/<name>`. `labels`
    is the selector of the objects. `propagation` is the propagationPolicy of their deletion.
    """

    group: str
    version: str
    plural: str
    namespace: str | None = None
    labels: str | None = None
    propagation: str = "Foreground"


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
# With a deletion in the foreground, Trainer would create the JobSet again as long as the TrainJob exists (Reconcile in
# pkg/controller/trainjob_controller.go, github.com/kubeflow/trainer v2.3.0). The drain then waits for the pods.
TRAIN_JOBS: Final = Kind(
    group="trainer.kubeflow.org",
    version="v1alpha1",
    plural="trainjobs",
    namespace=TRAINING_NAMESPACE,
    propagation="Background",
)
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
    """The objects in a cluster that belong to the stack.

    `pools` None: the cluster and all its objects belong to the stack. Otherwise only these pools, their nodes and
    the namespace `training` do; with `torchrun` also the definitions of torchrun jobs and queues, and so all of
    these.
    """

    pools: frozenset[str] | None = None
    torchrun: bool = False

    def asks_for(self, kind: Kind) -> bool:
        """Return whether the stack may have objects of a kind. The drain needs no permission to list other kinds."""
        return self.pools is None or self.torchrun or kind not in (GANGS, QUEUES)

    def has(self, kind: Kind, item: Mapping[str, Any]) -> bool:
        """Return whether the drain may delete this object."""
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
    """Return whether a driver created the volume for a claim and deletes it with the claim. A static volume stays."""
    made = metadata_of(volume).get("annotations", {}).get("pv.kubernetes.io/provisioned-by")
    return bool(made) and volume.get("spec", {}).get("persistentVolumeReclaimPolicy") == "Delete"


def metadata_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's metadata."""
    metadata: Mapping[str, Any] = item.get("metadata") or {}
    return metadata


def holds_a_node(pod: Mapping[str, Any], nodes: frozenset[str]) -> bool:
    """Return whether a pod blocks the deletion of its node. Karpenter waits for `do-not-disrupt` and disruption
    budgets.

    Pods of a DaemonSet, static pods and finished pods block nothing.
    """
    if pod.get("spec", {}).get("nodeName") not in nodes:
        return False
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = {owner.get("kind") for owner in metadata_of(pod).get("ownerReferences", [])}
    return not owners & {"DaemonSet", "Node"}


def name_of(kind: Kind, item: Mapping[str, Any]) -> str:
    """Return an object's name in messages: with its namespace if the kind is in all namespaces."""
    metadata = metadata_of(item)
    return f"{metadata['namespace']}/{metadata['name']}" if kind.namespace == EVERYWHERE else metadata["name"]
