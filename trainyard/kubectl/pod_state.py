"""Read the state of a worker's pod: whether the worker started and ended, and why it could not start. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainyard.kubectl.errors import NOT_FOUND, PluginError
from trainyard.operator import names as n
from trainyard.operator.observe import read_pod_exit

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class FailedStart:
    """A container that failed, so that the worker did not start.

    It is an init container, or the worker itself if the runtime could not start it, with the runtime's `message`.
    """

    container: str
    code: int
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return f"worker did not start: {self.message}, exit code {self.code}"
        return f"worker did not start: init container {self.container} failed with exit code {self.code}"


def failed_start(pod: JsonObject) -> FailedStart | None:
    """Return why the pod's worker can't start, None if it has started or may still start."""
    end = read_pod_exit(pod)
    if end.said and not end.before:
        return FailedStart(n.WORKER_CONTAINER, end.code or 0, f"{end.said} ({end.reason})")
    if has_started(pod):
        return None
    for each in pod.get("status", {}).get("initContainerStatuses", ()):
        state = each.get("state", {})
        # Between restarts, a container is waiting.
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


def newest_pods(pods: Iterable[JsonObject], attempt: int | None = None) -> dict[int, JsonObject]:
    """Return the newest pod of each node by node rank, of any attempt or of this one."""
    found: dict[int, JsonObject] = {}
    for pod in sorted(pods, key=lambda pod: (attempt_of(pod), pod["metadata"]["creationTimestamp"])):
        labels = pod["metadata"]["labels"]
        node = str(labels.get(n.LABEL_NODE, labels.get(n.LABEL_INDEX)))
        if node.isdecimal() and attempt in (None, attempt_of(pod)):
            found[int(node)] = pod
    return dict(sorted(found.items()))


def attempt_of(pod: JsonObject) -> int:
    """Return the attempt that the pod belongs to."""
    return int(pod["metadata"]["labels"].get(n.LABEL_ATTEMPT, 0))


def node_rank_problem(job: JsonObject, node_rank: int) -> str:
    """Return why `--node-rank` is too high for the job, "" if it is not, or if the job's size is unknown."""
    spec, status = job.get("spec", {}), job.get("status", {})
    elastic = spec.get("elastic") or {}
    # A resized job still has its former size.
    sizes = [each for each in (elastic.get("maxNodes"), spec.get("numNodes"), status.get("nodes")) if each]
    if not sizes or node_rank < max(sizes):
        return ""
    size, name = max(sizes), job["metadata"]["name"]
    nodes = "1 node, number 0" if size == 1 else f"{size} nodes, number 0 to {size - 1}"
    return f"--node-rank: {node_rank} is not a node of job {name}, which has {'at most ' if elastic else ''}{nodes}"


def check_node_rank(job: JsonObject, node_rank: int) -> None:
    """Raise PluginError if the job has no node with this rank."""
    if problem := node_rank_problem(job, node_rank):
        raise PluginError(NOT_FOUND, problem)
