"""A job that gets no pod which takes its workspace, as long as something else is as it is: nothing is to be waited for.

What a job waits for beside that, such as nodes, does not keep the pod away (launcher/core/torchrun/starting.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from launcher.core.torchrun import names as n
from launcher.plugin.cluster import Cluster
from launcher.plugin.exits import REFUSED, UNAVAILABLE, PluginError
from launcher.plugin.near_queues import queues_that_are_there
from launcher.plugin.tables import condition

JsonObject = dict[str, Any]
# What is to be done about each of these reasons of a job's status.
_FIRST: Final[Mapping[str, str]] = {
    n.REASON_QUEUE_INVALID: "put the queue right, then run sync again",
    n.REASON_SCHEDULER_NOT_INSTALLED: "run sync again when it is installed, or submit to a queue without it",
    n.REASON_CLAIM_NOT_FOUND: "run sync again when the claim is there",
    n.REASON_STORAGE_CLASS_NOT_FOUND: "run sync again when the class is there",
    n.REASON_KAI_QUEUE_NOT_FOUND: "run sync again when KAI's queue is there",
    n.REASON_KAI_QUEUE_LIMIT: "run sync again when the limit is higher, or submit a job of fewer GPUs",
    n.REASON_INVALID_SPEC: "put that right, then run sync again",
    n.REASON_REFUSED: "run sync again when the API server takes it",
}


def check(cluster: Cluster, job: JsonObject) -> None:
    """Raises PluginError where the job has no such pod, and gets none as it is, with what it waits for."""
    name = job["metadata"]["name"]
    why = _without_queue(cluster, job) or _stuck(job)
    # It may have been made before the job said so, and after it was looked for.
    if why and cluster.pod(n.sync_pod(name)) is None:
        raise PluginError(UNAVAILABLE, f"job {name}: has no pod that takes the workspace: {why}")


def _stuck(job: JsonObject) -> str:
    """What the job itself says, "" where it says nothing that keeps the pod away, or nothing of its present spec."""
    status = job.get("status", {})
    if status.get("observedGeneration") != job["metadata"].get("generation"):
        return ""
    reason = str(status.get("reason") or "")
    first = _FIRST.get(reason)
    return f"{reason}: {status.get('message') or 'no message'}; {first}" if first else ""


def _without_queue(cluster: Cluster, job: JsonObject) -> str:
    status, name = job.get("status", {}), job["metadata"]["name"]
    missed = (
        status.get("reason") == n.REASON_QUEUE_NOT_FOUND
        or condition(job, n.QUEUE_FOUND).get("status") == "False"
    )
    if status and not missed:
        return ""
    queue = job["spec"]["jobQueue"]
    # The controller may not have heard of the queue yet, or not of the job.
    lacks = _lacks(cluster, queue, told=missed)
    if not lacks:
        return ""
    return (
        f"queue {queue}: {lacks}; run sync again when it is there; if it was mistyped: "
        f"{cluster.command('torchrun cancel', name)}, and submit another one"
    )


def _lacks(cluster: Cluster, queue: str, *, told: bool) -> str:
    """Why no job begins in the queue, "" where one may; to who may not see it, what the job has `told`."""
    where = f"in namespace {cluster.namespace}"
    try:
        found = cluster.queue(queue)
    except PluginError as error:
        if error.code != REFUSED:
            raise
        found = None
        if not told:
            return ""
    if found is None:
        return f"is not {where}{queues_that_are_there(cluster, queue)}"
    return f"is being deleted {where}" if found["metadata"].get("deletionTimestamp") else ""
