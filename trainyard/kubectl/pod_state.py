"""Read the state of a worker's pod: whether the worker started and ended, and why it could not start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.operator import names as n
from trainyard.operator.observe import read_pod_exit

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class FailedStart:
    """A container that failed, so that the worker did not start.

    It is an init container, or the worker itself if it could not be started: `said` is the runtime's message then.
    """

    container: str
    code: int
    said: str = ""

    def __str__(self) -> str:
        if self.said:
            return f"worker did not start: {self.said}, exit code {self.code}"
        return f"worker did not begin: init container {self.container} failed with exit code {self.code}"


def failed_start(pod: JsonObject) -> FailedStart | None:
    """Return why the pod's worker can't start, None if it has started or may still start."""
    end = read_pod_exit(pod)
    if end.said and not end.before:
        return FailedStart(n.WORKER_CONTAINER, end.code or 0, f"{end.said} ({end.reason})")
    if has_started(pod):
        return None
    for each in pod.get("status", {}).get("initContainerStatuses", ()):
        state = each.get("state", {})
        # A container waits between its restarts.
        ended = state.get("terminated") or (
            "waiting" in state and each.get("lastState", {}).get("terminated")
        )
        if ended and ended.get("exitCode"):
            return FailedStart(each["name"], ended["exitCode"])
    return None


def has_started(pod: JsonObject) -> bool:
    """Return whether the worker has a log."""
    return bool({"running", "terminated"} & _worker_state(pod).keys())


def has_ended(pod: JsonObject) -> bool:
    """Return whether the log is complete."""
    return "terminated" in _worker_state(pod) or is_over(pod)


def is_over(pod: JsonObject) -> bool:
    """Return whether no container of the pod can start any more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _worker_state(pod: JsonObject) -> JsonObject:
    for each in pod.get("status", {}).get("containerStatuses", ()):
        if each.get("name") == n.WORKER_CONTAINER:
            state: JsonObject = each.get("state", {})
            return state
    return {}


def beyond(job: JsonObject, rank: int) -> str:
    """What is wrong with the node of this number, "" where the job has or may yet have it."""
    spec, status = job.get("spec", {}), job.get("status", {})
    elastic = spec.get("elastic") or {}
    # A job that is to get another size has the former one still.
    known = [each for each in (elastic.get("maxNodes"), spec.get("numNodes"), status.get("nodes")) if each]
    if not known or rank < max(known):
        return ""
    most, name = max(known), job["metadata"]["name"]
    nodes = "1 node, number 0" if most == 1 else f"{most} nodes, number 0 to {most - 1}"
    return f"--node-rank: {rank} should be a node of job {name}, which has {'at most ' if elastic else ''}{nodes}"
