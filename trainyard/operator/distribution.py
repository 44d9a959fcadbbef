"""Distribute a job's GPUs over nodes: one node if possible, else the fewest, with the same number on each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.k8s import names
from trainyard.operator.api.job import JobSpec
from trainyard.operator.api.queue import QueueSpec


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
    pool = queue.scheduling.pool or selector.get(names.LABEL_NODEPOOL)
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
