"""Find out whether a job gets a sync pod, which receives its workspace. The entry point is `check`.

A job in an invalid queue, for example, gets no pod until the queue is corrected. Waiting for nodes does not matter:
the sync pod exists before the workers (trainyard/operator/attempt.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainyard.kubectl.cluster import Cluster, find_queues, nearest
from trainyard.kubectl.errors import REFUSED, UNAVAILABLE, PluginError
from trainyard.kubectl.output import condition
from trainyard.operator import names as n

JsonObject = dict[str, Any]
# For each reason of a waiting job's status: until when the job waits, and what to do instead of waiting.
_UNTIL: Final[Mapping[str, tuple[str, str]]] = {
    n.REASON_QUEUE_INVALID: ("the queue is valid", ""),
    n.REASON_SCHEDULER_NOT_INSTALLED: ("it is installed", ", or submit to a queue without it"),
    n.REASON_CLAIM_NOT_FOUND: ("the claim exists", ""),
    n.REASON_STORAGE_CLASS_NOT_FOUND: ("the class exists", ""),
    n.REASON_KAI_QUEUE_NOT_FOUND: ("KAI's queue exists", ""),
    n.REASON_KAI_QUEUE_LIMIT: ("the limit is higher", ", or submit a job of fewer GPUs"),
    n.REASON_REFUSED: ("the API server accepts it", ""),
}
# The objects of a deleted job with the same name disappear within seconds.
_NAME_SECONDS: Final = 30.0
_MAX_NAMESPACES: Final = 5


class NoSyncPod(PluginError):
    """The job gets no sync pod: `why`, and `until` when, "" if it never gets one."""

    def __init__(self, job: str, why: str, until: str, advice: str) -> None:
        super().__init__(UNAVAILABLE, f"job {job}: has no pod that receives the workspace: {why}; {advice}")
        self.why = why
        self.until = until


def check(cluster: Cluster, job: JsonObject, waited: float = 0.0) -> None:
    """Raise NoSyncPod if the job gets no sync pod at present. `waited` is how many seconds the caller has waited."""
    problem = _check_queue(cluster, job) or _check_status(job, waited)
    # The pod may have been created after the caller looked for it.
    if problem and cluster.pod(n.sync_pod(job["metadata"]["name"])) is None:
        raise problem


def _check_status(job: JsonObject, waited: float) -> NoSyncPod | None:
    """Return the problem that the job's status has about the present spec."""
    status, name = job.get("status", {}), job["metadata"]["name"]
    if status.get("observedGeneration") != job["metadata"].get("generation"):
        return None
    reason = str(status.get("reason") or "")
    why = f"{reason}: {status.get('message') or 'no message'}"
    if reason == n.REASON_INVALID_SPEC:
        return NoSyncPod(name, why, "", "correct the spec, then run sync again")
    until, instead = _UNTIL.get(reason, ("", ""))
    if reason == n.REASON_NAME_TAKEN and waited >= _NAME_SECONDS:
        until = "the name is free"
    return NoSyncPod(name, why, until, f"run sync again when {until}{instead}") if until else None


def _check_queue(cluster: Cluster, job: JsonObject) -> NoSyncPod | None:
    status, name, queue = job.get("status", {}), job["metadata"]["name"], job["spec"]["jobQueue"]
    is_missing = (
        status.get("reason") == n.REASON_QUEUE_NOT_FOUND
        or condition(job, n.QUEUE_FOUND).get("status") == "False"
    )
    if status and not is_missing:
        return None
    # The controller may not have seen the queue or the job yet.
    problem = _queue_problem(cluster, queue, is_missing)
    if not problem:
        return None
    until, cancel = "the queue exists", cluster.command("torchrun cancel", name)
    advice = f"run sync again when {until}; if its name is wrong: {cancel}, and submit another job"
    return NoSyncPod(name, f"queue {queue}: {problem}", until, advice)


def _queue_problem(cluster: Cluster, queue: str, is_missing: bool) -> str:
    """Return why no job starts in the queue, else "". `is_missing` holds if the user may not read queues."""
    where = f"in namespace {cluster.namespace}"
    try:
        found = cluster.queue(queue)
    except PluginError as error:
        if error.code != REFUSED:
            raise
        if not is_missing:
            return ""
        found = None
    if found is None:
        names = find_queues(cluster, queue)
        if names is None:
            return f"is not {where}"
        here, elsewhere = names
        others = f", and one of this name in {', '.join(elsewhere[:_MAX_NAMESPACES])}" if elsewhere else ""
        return f"is not {where}, which has {nearest(queue, here)}{others}"
    return f"is being deleted {where}" if found["metadata"].get("deletionTimestamp") else ""
