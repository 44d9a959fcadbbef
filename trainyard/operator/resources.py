"""Decide the resources of an attempt: its nodes, the GPUs on each, and its claims. Pure.

`distribute` gives a job one node if possible, else the fewest, with the same number of GPUs on each. `plan_storage`
decides its claims, and which node mounts which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import JobSpec
from trainyard.operator.api.queue import (
    CHECKPOINTS,
    DATASETS,
    READ_ONLY_MANY,
    READ_WRITE_MANY,
    READ_WRITE_ONCE,
    WORKSPACE,
    QueueSpec,
    Volume,
)
from trainyard.operator.api.resolve import Settings
from trainyard.operator.observe import ClusterState

# Many nodes can mount their file systems (https://docs.aws.amazon.com/eks/latest/userguide/fsx-csi.html and
# .../efs-csi.html).
SHARED_PROVISIONERS: Final = ("fsx.csi.aws.com", "efs.csi.aws.com")


class InvalidJob(ValueError):
    """The job can't run in its queue. The message has the field and its constraint."""


class VolumeMissing(Exception):
    """The source of a volume does not exist yet. `reason` is the reason in the job's status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of an attempt: `nodes` pods with `gpus` GPUs each. `minimum` is the minimum number of nodes."""

    nodes: int
    gpus: int
    minimum: int

    @property
    def elastic(self) -> bool:
        return self.minimum < self.nodes

    @property
    def processes(self) -> int:
        """Return the number of processes on each node: one for each GPU, or one."""
        return self.gpus or 1

    @property
    def nnodes(self) -> str:
        """Return the nodes in the notation of torchrun's --nnodes."""
        return f"{self.minimum}:{self.nodes}" if self.elastic else str(self.nodes)

    @property
    def total_gpus(self) -> int:
        return self.nodes * self.gpus


def distribute(job: JobSpec, queue: QueueSpec) -> Size:
    """Return the size of the job on nodes of this queue. Raises InvalidJob."""
    total, per_node = job.num_gpus, queue.node_resources.gpus
    if total > 0 and per_node == 0:
        raise InvalidJob(
            f"spec.numGPUs is {total} and nodeResources.gpus of queue {job.job_queue} is 0; use a queue with "
            "GPUs, or 0"
        )
    if total == 0 and per_node and (bound := _bound_to(queue)):
        raise InvalidJob(
            f"spec.numGPUs is 0, and nodes of {bound} have GPUs, which would idle; it must be "
            "at least 1 GPU, or a queue on a pool without GPUs, whose nodeResources.gpus is 0"
        )
    fewest = ceil(Fraction(total, per_node)) if total else 1
    nodes = job.elastic.max_nodes if job.elastic is not None else job.num_nodes or fewest
    if total % nodes:
        raise InvalidJob(_describe_uneven(job, per_node, nodes, fewest))
    if total // nodes > per_node:
        raise InvalidJob(
            f"spec.numGPUs is {total} on {nodes} nodes, {total // nodes} on each, and nodeResources.gpus of the queue "
            f"is {per_node}; it must be {fewest} nodes or more"
        )
    minimum = job.elastic.min_nodes if job.elastic is not None else nodes
    return Size(nodes=nodes, gpus=total // nodes, minimum=minimum)


def _bound_to(queue: QueueSpec) -> str:
    """Return the setting that restricts workers of a GPU queue to GPU nodes; "" if they may run on others."""
    selector = {**(queue.pod_template.spec.get("nodeSelector") or {}), **queue.scheduling.node_selector}
    pool = queue.scheduling.pool or selector.get(names.LABEL_NODEPOOL)
    if pool:
        return f"pool {pool}"
    return f"gpuType {queue.node_resources.gpu_type}" if queue.node_resources.gpu_type else ""


def _describe_uneven(job: JobSpec, per_node: int, nodes: int, fewest: int) -> str:
    """Return why the GPUs do not spread evenly over the nodes, and a size that does."""
    total = job.num_gpus
    even = next(count for count in range(fewest, total + 1) if total % count == 0)
    split = f"{even} with {total // even} GPU{'s' * (total > even)} on each"
    return (
        f"spec.numGPUs is {total}, which does not spread evenly over {nodes} nodes; it must be "
        f"{nodes * per_node}, or set spec.numNodes to {split}"
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim of a job. `size` is in bytes."""

    name: str
    size: int
    storage_class: str
    access_mode: str
    retain: bool


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A volume of the workers. `claims` has the claim of each node, or one for all."""

    volume: str
    path: str
    claims: tuple[str, ...]
    read_only: bool = False

    def claim(self, node: int) -> str:
        """Return the claim of this node."""
        return self.claims[node] if len(self.claims) > 1 else self.claims[0]


@dataclass(frozen=True, kw_only=True)
class StoragePlan:
    """The claims to create, and the mounts."""

    claims: tuple[Claim, ...]
    mounts: tuple[Mount, ...]

    @property
    def each_node_its_own(self) -> bool:
        """Return whether nodes mount different claims. One pod template can't express this."""
        return any(len(mount.claims) > 1 for mount in self.mounts)


def plan_storage(
    job: str,
    spec: JobSpec,
    settings: Settings,
    size: Size,
    cluster: ClusterState,
    existing: Mapping[str, tuple[str, ...]],
) -> StoragePlan:
    """Return the claims and mounts of a job of this name and size. A node without GPUs counts as one GPU.

    `existing` has the access modes of the job's claims, by name. They override the default of their class.

    Raises:
        InvalidJob: The job can't run with this storage.
        VolumeMissing: It can run later.
    """
    claims: list[Claim] = []
    mounts: list[Mount] = []
    for volume in settings.queue.volumes.values():
        first = volume.existing_claim or n.claim_name(job, volume.name)
        kept = first if not volume.existing_claim and first in existing else ""
        mode = _best_mode(existing[kept]) if kept else _access_mode(volume, cluster)
        _check_mode(volume, mode, size, kept)
        claim_names, nodes = [first], size.nodes
        read_only = volume.name == DATASETS
        if volume.existing_claim:
            # Without a workspace, a shared claim is mounted read-only, because others may keep code there.
            read_only = read_only or (volume.name == WORKSPACE and spec.workspace is None)
        else:
            if mode == READ_WRITE_ONCE and nodes > 1:  # the workspace
                claim_names, nodes = [n.claim_name(job, volume.name, node) for node in range(nodes)], 1
            amount = volume.size
            if amount is None:
                amount = (volume.size_per_gpu or 0) * nodes * (size.gpus or 1)
            claims += [
                Claim(
                    name=name,
                    size=ceil(Fraction(amount)),
                    storage_class=volume.storage_class,
                    access_mode=mode,
                    retain=volume.retain or (volume.name == CHECKPOINTS and spec.persist_checkpoints),
                )
                for name in claim_names
            ]
        mount = Mount(
            volume=volume.name, path=volume.mount_path, claims=tuple(claim_names), read_only=read_only
        )
        mounts.append(mount)
    return StoragePlan(claims=tuple(claims), mounts=tuple(mounts))


def has_unknown_class(manifest: JsonObject, cluster: ClusterState) -> bool:
    """Return whether this is a claim of an unknown class. Its access mode is then a guess."""
    if manifest["kind"] != "PersistentVolumeClaim":
        return False
    return manifest["spec"].get("storageClassName", cluster.default_class) not in cluster.provisioners


def _access_mode(volume: Volume, cluster: ClusterState) -> str:
    place = f"storage.{volume.name}"
    if volume.existing_claim:
        modes = cluster.claims.get(volume.existing_claim)
        if modes is None:
            raise VolumeMissing(
                n.REASON_CLAIM_NOT_FOUND,
                f"{place}.existingClaim {volume.existing_claim} does not exist in the namespace of the job. Create the "
                "PersistentVolumeClaim. The job then starts.",
            )
        return volume.access_mode if volume.access_mode in modes else _best_mode(modes)
    if volume.access_mode:
        return volume.access_mode
    if volume.storage_class and volume.storage_class not in cluster.provisioners:
        # A class of volumes that were created by hand needs no StorageClass. Only the user knows their access mode.
        raise VolumeMissing(
            n.REASON_STORAGE_CLASS_NOT_FOUND,
            f"{place}.storageClass {volume.storage_class} does not exist. Create the StorageClass. If its volumes are "
            f"created by hand, set {place}.accessMode. The job then starts.",
        )
    provisioner = cluster.provisioners.get(volume.storage_class or cluster.default_class, "")
    return READ_WRITE_MANY if provisioner in SHARED_PROVISIONERS else READ_WRITE_ONCE


def _best_mode(modes: tuple[str, ...]) -> str:
    return next((mode for mode in (READ_WRITE_MANY, READ_ONLY_MANY) if mode in modes), READ_WRITE_ONCE)


def _check_mode(volume: Volume, mode: str, size: Size, kept: str) -> None:
    """Raise InvalidJob if the nodes can't mount the volume. `kept` is the name of an existing claim of the job."""
    place = f"storage.{volume.name}"
    if mode == READ_ONLY_MANY and volume.name != DATASETS:
        raise InvalidJob(
            f"{place}.accessMode is {mode}, but workers write there. It must be {READ_WRITE_MANY}."
        )
    if size.nodes == 1 or mode != READ_WRITE_ONCE or (volume.name == WORKSPACE and not volume.existing_claim):
        return
    if kept:
        raise InvalidJob(
            f"{place}: only one node can mount the existing claim {kept} ({READ_WRITE_ONCE}), and the job has "
            f"{size.nodes} nodes. Use one node or another job name, or delete this claim and its data."
        )
    what = f"{place}.existingClaim {volume.existing_claim}" if volume.existing_claim else place
    raise InvalidJob(
        f"{what} can be mounted by one node ({READ_WRITE_ONCE}), and the job has {size.nodes} nodes. Use one node, or "
        f"a class or claim for many nodes ({READ_WRITE_MANY}), as {' and '.join(SHARED_PROVISIONERS)} have."
    )
