"""A job that gets no pod which takes its workspace, as long as something else is as it is: nothing is to be waited for.

What a job waits for beside that, such as nodes, does not keep the pod away (trainyard/operator/attempt.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainyard.kubectl.cluster import Cluster, queues_that_are_there
from trainyard.kubectl.errors import REFUSED, UNAVAILABLE, PluginError
from trainyard.kubectl.output import condition
from trainyard.operator import names as n

JsonObject = dict[str, Any]
# Until when the job waits with each of these reasons of its status: what somebody else does brings the pod then.
_UNTIL: Final[Mapping[str, str]] = {
    n.REASON_QUEUE_INVALID: "the queue is right",
    n.REASON_SCHEDULER_NOT_INSTALLED: "it is installed",
    n.REASON_CLAIM_NOT_FOUND: "the claim is there",
    n.REASON_STORAGE_CLASS_NOT_FOUND: "the class is there",
    n.REASON_KAI_QUEUE_NOT_FOUND: "KAI's queue is there",
    n.REASON_KAI_QUEUE_LIMIT: "the limit is higher",
    n.REASON_REFUSED: "the API server takes it",
}
# What a job of this name had that was just deleted goes within seconds; a name that something else has stays taken.
_NAME_SECONDS: Final = 30.0
# What can be done instead of waiting.
_OR: Final[Mapping[str, str]] = {
    n.REASON_SCHEDULER_NOT_INSTALLED: ", or submit to a queue without it",
    n.REASON_KAI_QUEUE_LIMIT: ", or submit a job of fewer GPUs",
}


class Podless(PluginError):
    """The job has no such pod, and gets none as it is: `why`, and `until` when, "" where waiting is of no use."""

    def __init__(self, job: str, why: str, until: str, first: str) -> None:
        super().__init__(UNAVAILABLE, f"job {job}: has no pod that takes the workspace: {why}; {first}")
        self.why = why
        self.until = until


def check(cluster: Cluster, job: JsonObject, waited: float = 0.0) -> None:
    """Raises Podless where the job has no such pod, and gets none as it is, with what it waits for.

    `waited` is for how many seconds somebody has waited for the pod.
    """
    podless = _without_queue(cluster, job) or _stuck(job, waited)
    # It may have been made before the job said so, and after it was looked for.
    if podless and cluster.pod(n.sync_pod(job["metadata"]["name"])) is None:
        raise podless


def _stuck(job: JsonObject, waited: float) -> Podless | None:
    """What the job itself says, None where it says nothing that keeps the pod away, or nothing of its present spec."""
    status, name = job.get("status", {}), job["metadata"]["name"]
    if status.get("observedGeneration") != job["metadata"].get("generation"):
        return None
    reason = str(status.get("reason") or "")
    why = f"{reason}: {status.get('message') or 'no message'}"
    if reason == n.REASON_INVALID_SPEC:
        return Podless(name, why, "", "put that right, then run sync again")
    until = _UNTIL.get(reason)
    if reason == n.REASON_NAME_TAKEN and waited >= _NAME_SECONDS:
        until = "the name is free"
    return Podless(name, why, until, f"run sync again when {until}{_OR.get(reason, '')}") if until else None


def _without_queue(cluster: Cluster, job: JsonObject) -> Podless | None:
    status, name = job.get("status", {}), job["metadata"]["name"]
    missed = (
        status.get("reason") == n.REASON_QUEUE_NOT_FOUND
        or condition(job, n.QUEUE_FOUND).get("status") == "False"
    )
    if status and not missed:
        return None
    queue = job["spec"]["jobQueue"]
    # The controller may not have heard of the queue yet, or not of the job.
    lacks = _lacks(cluster, queue, told=missed)
    if not lacks:
        return None
    until, cancel = "it is there", cluster.command("torchrun cancel", name)
    first = f"run sync again when {until}; if it was mistyped: {cancel}, and submit another one"
    return Podless(name, f"queue {queue}: {lacks}", until, first)


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
