"""The kinds of objects that a drain reads, which of these objects it may delete, and which pods it ends first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

Item = Mapping[str, Any]
EVERYWHERE: Final = "*"


@dataclass(frozen=True)
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
JOBS: Final = Kind("batch", "v1", "jobs", TRAINING_NAMESPACE, labels=f"{LABEL_ROLE}={ROLE_LAUNCHER}")
PYTORCH_JOBS: Final = Kind("kubeflow.org", "v1", "pytorchjobs", TRAINING_NAMESPACE)
MPI_JOBS: Final = Kind("kubeflow.org", "v1", "mpijobs", TRAINING_NAMESPACE)
# With a deletion in the foreground, Trainer would create the JobSet again as long as the TrainJob exists (Reconcile in
# pkg/controller/trainjob_controller.go, github.com/kubeflow/trainer v2.3.0). The drain then waits for the pods.
TRAIN_JOBS: Final = Kind(
    "trainer.kubeflow.org", "v1alpha1", "trainjobs", TRAINING_NAMESPACE, propagation="Background"
)
# In all namespaces: the stack's CustomResourceDefinitions are deleted with all objects.
GANGS: Final = Kind(TORCHRUN_GROUP, TORCHRUN_VERSION, TORCHRUN_JOBS, EVERYWHERE)
QUEUES: Final = Kind(TORCHRUN_GROUP, TORCHRUN_VERSION, TORCHRUN_QUEUES, EVERYWHERE)
# Deployments of warm nodes: deleted before their pods, which would come back otherwise.
HOLDERS: Final = Kind("apps", "v1", "deployments", TRAINING_NAMESPACE, labels=LABEL_ROLE)
PODS: Final = Kind("", "v1", "pods", TRAINING_NAMESPACE, labels=LABEL_ROLE)
SERVICES: Final = Kind("", "v1", "services", EVERYWHERE)
INGRESSES: Final = Kind("networking.k8s.io", "v1", "ingresses", EVERYWHERE)
NODE_POOLS: Final = Kind("karpenter.sh", "v1", "nodepools")
NODE_CLAIMS: Final = Kind("karpenter.sh", "v1", "nodeclaims", labels=LABEL_NODEPOOL)
NODE_CLASSES: Final = Kind("karpenter.k8s.aws", "v1", "ec2nodeclasses")
NODES: Final = Kind("", "v1", "nodes", labels=LABEL_NODEPOOL)
ALL_PODS: Final = Kind("", "v1", "pods", EVERYWHERE)
VOLUMES: Final = Kind("", "v1", "persistentvolumes")
VOLUME_CLAIMS: Final = Kind("", "v1", "persistentvolumeclaims", EVERYWHERE)
# Kinds of Kubernetes that create pods, by group and kind. An operator's own kinds are not here: the objects that they
# create are, and the drain deletes these as often as they are created.
OWNERS: Final[Mapping[tuple[str, str], Kind]] = {
    (group, kind): Kind(group, "v1", f"{kind.lower()}s", EVERYWHERE)
    for group, kinds in (
        ("apps", ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")),
        ("batch", ("CronJob", "Job")),
    )
    for kind in kinds
}
# A pod's ReplicaSet and its Deployment, or its Job and its CronJob.
MAX_OWNERS: Final = 2


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

    def has(self, kind: Kind, item: Item) -> bool:
        """Return whether the drain may delete this object."""
        metadata = item["metadata"]
        if kind == SERVICES and item.get("spec", {}).get("type") != "LoadBalancer":
            return False
        if kind == VOLUMES and not _is_deleted_with_claim(item):
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


def _is_deleted_with_claim(volume: Item) -> bool:
    """Return whether a driver created the volume for a claim and deletes it with the claim. A static volume stays."""
    driver = metadata_of(volume).get("annotations", {}).get("pv.kubernetes.io/provisioned-by")
    return bool(driver) and volume.get("spec", {}).get("persistentVolumeReclaimPolicy") == "Delete"


def metadata_of(item: Item) -> Item:
    """Return an object's metadata."""
    metadata: Item = item.get("metadata") or {}
    return metadata


def name_of(kind: Kind, item: Item) -> str:
    """Return an object's name in messages: with its namespace if the kind is in all namespaces."""
    metadata = metadata_of(item)
    return f"{metadata['namespace']}/{metadata['name']}" if kind.namespace == EVERYWHERE else metadata["name"]


def holds_a_node(pod: Item, nodes: frozenset[str]) -> bool:
    """Return whether a pod blocks the deletion of its node: Karpenter waits for `do-not-disrupt` and for budgets.

    Pods of a DaemonSet, static pods and finished pods block nothing.
    """
    if pod.get("spec", {}).get("nodeName") not in nodes:
        return False
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = {owner.get("kind") for owner in metadata_of(pod).get("ownerReferences", [])}
    return not owners & {"DaemonSet", "Node"}


def claims_of(pod: Item) -> frozenset[str]:
    """Return the claims that a pod mounts, `<namespace>/<name>`. An ephemeral volume's has the pod's and its name.

    A deleted claim remains as long as a pod uses it, running or not
    (https://kubernetes.io/docs/concepts/storage/persistent-volumes/, "Storage Object in Use Protection";
    https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/, "PersistentVolumeClaim naming").
    """
    metadata = metadata_of(pod)
    claims = set()
    for volume in pod.get("spec", {}).get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            claims.add(str(volume["persistentVolumeClaim"]["claimName"]))
        elif "ephemeral" in volume:
            claims.add(f"{metadata['name']}-{volume['name']}")
    return frozenset(f"{metadata['namespace']}/{name}" for name in claims)


def top_owner(pod: Item, get: Callable[[Kind, str], Item | None]) -> tuple[Kind, Item] | None:
    """Return the topmost owner of a pod, with its kind; None for a pod without an owner.

    `get` reads an object by its kind and `<namespace>/<name>`; it returns None if there is none.
    """
    owner: tuple[Kind, Item] | None = None
    item = pod
    for _ in range(MAX_OWNERS):
        named = _owner(item)
        above = get(*named) if named else None
        if named is None or above is None:
            break
        owner, item = (named[0], above), above
    return owner


def _owner(item: Item) -> tuple[Kind, str] | None:
    metadata = metadata_of(item)
    for owner in metadata.get("ownerReferences") or []:
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        kind = OWNERS.get((group, str(owner.get("kind"))))
        if owner.get("controller") and kind is not None:
            return kind, f"{metadata['namespace']}/{owner['name']}"
    return None
