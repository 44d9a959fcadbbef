"""Decide the size and the storage of an attempt: its nodes, the GPUs on each, and its claims. Pure.

A job gets one node if possible, else the fewest, with the same number of GPUs on each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from trainyard.k8s import names as k8s_names
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
from trainyard.operator.observe import Cluster


class InvalidJob(ValueError):
    """The job's size is invalid; the message names the field and what it must be."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """`nodes` pods with `gpus` GPUs each. `least` is the minimum number of nodes."""

    nodes: int
    gpus: int
    least: int

    @property
    def elastic(self) -> bool:
        """Whether the job may run with fewer nodes."""
        return self.least < self.nodes

    @property
    def processes(self) -> int:
        """Return the number of processes on each node: one for each GPU, or one."""
        return self.gpus or 1

    @property
    def total_gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return self.nodes * self.gpus


def distribute(job: JobSpec, queue: QueueSpec) -> Size:
    """Return the size of the job on nodes of this queue. Raises InvalidJob."""
    nodes, least = _nodes(job, queue)
    if job.num_gpus == 0 and queue.node_resources.gpus and (bound := _bound_to(queue)):
        raise InvalidJob(
            f"spec.numGPUs is 0, and nodes of {bound} have GPUs, which would idle; it must be "
            "at least 1 GPU, or a queue on a pool without GPUs, whose nodeResources.gpus is 0"
        )
    if job.num_gpus == 0:
        return Size(nodes=nodes, gpus=0, least=least)
    if job.num_gpus % nodes:
        raise InvalidJob(_uneven(job, queue, nodes))
    each = job.num_gpus // nodes
    if each > queue.node_resources.gpus:
        raise InvalidJob(
            f"spec.numGPUs is {job.num_gpus} on {nodes} nodes, {each} on each, and nodeResources.gpus of the queue is "
            f"{queue.node_resources.gpus}; it must be {-(-job.num_gpus // queue.node_resources.gpus)} nodes or more"
        )
    return Size(nodes=nodes, gpus=each, least=least)


def _bound_to(queue: QueueSpec) -> str:
    """Return what binds workers of a queue with GPUs to nodes with GPUs; "" if they may run on others."""
    selector = {**(queue.pod_template.spec.get("nodeSelector") or {}), **queue.scheduling.node_selector}
    pool = queue.scheduling.pool or selector.get(k8s_names.LABEL_NODEPOOL)
    if pool:
        return f"pool {pool}"
    return f"gpuType {queue.node_resources.gpu_type}" if queue.node_resources.gpu_type else ""


def _nodes(job: JobSpec, queue: QueueSpec) -> tuple[int, int]:
    if job.num_gpus > 0 and queue.node_resources.gpus == 0:
        raise InvalidJob(
            f"spec.numGPUs is {job.num_gpus} and nodeResources.gpus of queue {job.job_queue} is 0; use a queue with "
            "GPUs, or 0"
        )
    if job.elastic is not None:
        return job.elastic.max_nodes, job.elastic.min_nodes
    nodes = job.num_nodes or (-(-job.num_gpus // queue.node_resources.gpus) if job.num_gpus else 1)
    return nodes, nodes


def _uneven(job: JobSpec, queue: QueueSpec, nodes: int) -> str:
    split = _split(job.num_gpus, queue.node_resources.gpus)
    if job.elastic is not None or job.num_nodes is not None:
        field = "elastic.maxNodes" if job.elastic is not None else "numNodes"
        right = "one that does" if job.elastic is not None or not split else split
        return f"spec.{field} is {nodes} and does not divide spec.numGPUs, {job.num_gpus}; it must be {right}"
    counts = " or ".join(str(_nearest(job.num_gpus, queue.node_resources.gpus, step)) for step in (-1, 1))
    right = (
        f"spec.numNodes {split}, or spec.numGPUs {counts}"
        if split
        else f"{counts}, or another split by spec.numNodes"
    )
    return (
        f"spec.numGPUs is {job.num_gpus}, which does not spread evenly over the {nodes} nodes that it takes; it must "
        f"be {right}"
    )


def _split(count: int, each: int) -> str:
    """Return the fewest nodes that share the count evenly, in words; "" if it takes more than twice as many.

    One GPU on each node always works, but is no advice for 17 GPUs.
    """
    least = -(-count // each)
    nodes = next((nodes for nodes in range(least, 2 * least + 1) if count % nodes == 0), None)
    if nodes is None:
        return ""
    share = count // nodes
    return f"{nodes} with {share} GPU{'s' if share > 1 else ''} on each"


def _nearest(count: int, each: int, step: int) -> int:
    """Return the next count below or above that spreads evenly."""
    count += step
    while count % -(-count // each):
        count += step
    return count


# Many nodes can mount their file systems (https://docs.aws.amazon.com/eks/latest/userguide/fsx-csi.html and
# .../efs-csi.html).
SHARED_PROVISIONERS: Final = ("fsx.csi.aws.com", "efs.csi.aws.com")


class VolumeMissing(Exception):
    """The source of a volume does not exist yet. `reason` is the job's reason."""

    reason: str


class ClaimMissing(VolumeMissing):
    """An existing claim does not exist."""

    reason = n.REASON_CLAIM_NOT_FOUND


class ClassMissing(VolumeMissing):
    """A storage class does not exist, so its provisioner is not known."""

    reason = n.REASON_STORAGE_CLASS_NOT_FOUND


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
class Storage:
    """The claims to create, and the mounts."""

    claims: tuple[Claim, ...]
    mounts: tuple[Mount, ...]

    @property
    def each_node_its_own(self) -> bool:
        """Whether nodes mount different claims, which one pod template can't say."""
        return any(len(mount.claims) > 1 for mount in self.mounts)


def plan_storage(
    job: str,
    settings: Settings,
    size: Size,
    cluster: Cluster,
    there: Mapping[str, tuple[str, ...]],
    *,
    persist_checkpoints: bool,
    workspace: bool,
) -> Storage:
    """Return the claims and mounts of a job of this size.

    Args:
        job: The name of the job.
        settings: Its settings.
        size: Its size.
        cluster: What was read of the cluster.
        there: The access modes of the job's existing claims, by name. The defaults of their class do not matter.
        persist_checkpoints: Whether the checkpoints' claim is retained.
        workspace: Whether the job has a workspace. A job without one mounts a shared workspace claim read-only, because
        others
            may keep code there.

    Raises:
        InvalidJob: The job can't run with this storage.
        VolumeMissing: It can run later.
    """
    claims: list[Claim] = []
    mounts: list[Mount] = []
    for volume in settings.queue.volumes.values():
        kept = "" if volume.existing_claim else _CLAIM_NAMES[volume.name](job)
        mode = _mode_of(there[kept]) if kept in there else _access_mode(volume, cluster)
        _check(volume, mode, size, kept if kept in there else "")
        retain = volume.retain or (volume.name == CHECKPOINTS and persist_checkpoints)
        several = volume.name == WORKSPACE and mode == READ_WRITE_ONCE and size.nodes > 1
        if volume.existing_claim:
            names: tuple[str, ...] = (volume.existing_claim,)
        elif several:
            names = tuple(n.workspace_claim(job, node) for node in range(size.nodes))
        else:
            names = (kept,)
        if not volume.existing_claim:
            amount = _bytes(volume, size, 1 if several else size.nodes)
            claims += [
                Claim(
                    name=name,
                    size=amount,
                    storage_class=volume.storage_class,
                    access_mode=mode,
                    retain=retain,
                )
                for name in names
            ]
        others_code = volume.name == WORKSPACE and bool(volume.existing_claim) and not workspace
        read_only = volume.name == DATASETS or others_code
        mounts.append(Mount(volume=volume.name, path=volume.mount_path, claims=names, read_only=read_only))
    return Storage(claims=tuple(claims), mounts=tuple(mounts))


def has_unknown_class(manifest: JsonObject, cluster: Cluster) -> bool:
    """Return whether this is a claim of an unknown class, whose access mode was a guess."""
    if manifest["kind"] != "PersistentVolumeClaim":
        return False
    return manifest["spec"].get("storageClassName", cluster.default_class) not in cluster.provisioners


_CLAIM_NAMES: Final = {
    WORKSPACE: n.workspace_claim,
    DATASETS: n.datasets_claim,
    CHECKPOINTS: n.checkpoints_claim,
}


def _bytes(volume: Volume, size: Size, nodes: int) -> int:
    """Return the size for the share of `nodes` nodes. A node without GPUs counts as one GPU."""
    per_gpu = volume.size_per_gpu or 0
    return ceil(Fraction(volume.size if volume.size is not None else per_gpu * nodes * (size.gpus or 1)))


def _access_mode(volume: Volume, cluster: Cluster) -> str:
    if volume.existing_claim:
        modes = cluster.claims.get(volume.existing_claim)
        if modes is None:
            raise ClaimMissing(
                f"storage.{volume.name}.existingClaim {volume.existing_claim} is not in the job's namespace; it begins "
                "when the claim is there"
            )
        return volume.access_mode if volume.access_mode in modes else _mode_of(modes)
    if volume.access_mode:
        return volume.access_mode
    if volume.storage_class and volume.storage_class not in cluster.provisioners:
        # A class of volumes that were created by hand needs no StorageClass. Only the user knows their access mode.
        raise ClassMissing(
            f"storage.{volume.name}.storageClass {volume.storage_class} is no StorageClass of the cluster; the job "
            f"begins when it is there, or when storage.{volume.name}.accessMode says how its volumes can be mounted"
        )
    provisioner = cluster.provisioners.get(volume.storage_class or cluster.default_class, "")
    return READ_WRITE_MANY if provisioner in SHARED_PROVISIONERS else READ_WRITE_ONCE


def _mode_of(modes: tuple[str, ...]) -> str:
    """Return the best access mode of an existing claim."""
    return next((mode for mode in (READ_WRITE_MANY, READ_ONLY_MANY) if mode in modes), READ_WRITE_ONCE)


def _check(volume: Volume, mode: str, size: Size, kept: str) -> None:
    """Check whether the nodes may mount the volume. `kept` is the name of an existing claim of the job."""
    place = f"storage.{volume.name}"
    if mode == READ_ONLY_MANY and volume.name != DATASETS:
        raise InvalidJob(
            f"{place}.accessMode is {mode} and workers write there; it must be {READ_WRITE_MANY}"
        )
    if size.nodes == 1 or mode != READ_WRITE_ONCE:
        return
    if kept and volume.name != WORKSPACE:
        raise InvalidJob(
            f"{place}: claim {kept} is there already, can be mounted by one node ({READ_WRITE_ONCE}), and the job has "
            f"{size.nodes}; use one node or another job name, or delete this claim and its data"
        )
    if volume.name != WORKSPACE or volume.existing_claim:
        what = f"{place}.existingClaim {volume.existing_claim}" if volume.existing_claim else place
        raise InvalidJob(
            f"{what} can be mounted by one node ({READ_WRITE_ONCE}) and the job has {size.nodes}; it must be a "
            f"class or claim for many nodes ({READ_WRITE_MANY}), as {' and '.join(SHARED_PROVISIONERS)} have, "
            "or one node"
        )
