"""The present and archived logs of a job's workers: `show_log` prints them. follow.py has the verb `logs`.

The log of a worker comes from its pod, else from the bucket of its queue, else from the job's status. A pod in the
cluster reads the bucket (`read_logs`). The user needs permissions in the namespace, and none in AWS.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from launcher.observe import pending_reason
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.output import NOT_FOUND, UNAVAILABLE, PluginError, say
from trainyard.operator import names as n
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.children import LOG_READER_CONTAINER, build_log_reader
from trainyard.operator.observe import read_pod_exit

JsonObject = dict[str, Any]
LAST: Final = "last"
_POLL_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 90.0
_NO_LOG: Final = 400


def show_log(
    cluster: Cluster, name: str, node_rank: int | None, attempt: int | None, tail: int | None, *, every: bool
) -> None:
    """Print the present log of a worker, or of all workers.

    If the pod or node of a worker is gone, print its archived log, or the end of the log that the job's status has of
    the first failed worker.

    Raises:
        PluginError: There is no log.
    """
    job = cluster.job(name)
    pods = newest_pods(cluster.workers(job), attempt)
    shown = {node: pod for node, pod in pods.items() if every or node == (node_rank or 0)}
    if every and shown:
        _show_missing(cluster, job, shown, tail)
    if not shown:
        try:
            if show_archived(cluster, job, None if every else node_rank or 0, attempt, tail):
                return
        except PluginError as error:
            if not show_log_tail(job, None if every else node_rank, attempt, tail):
                raise
            say(str(error))
            return
    if not shown and not every and node_rank is None:
        shown = _first_failed(job, pods)
    if not shown and not show_log_tail(job, None if every else node_rank, attempt, tail):
        if not every:
            check_node_rank(job, node_rank or 0)
        raise PluginError(NOT_FOUND, _describe_missing(job, node_rank, attempt, every=every))
    for node, pod in shown.items():
        _show_pod(cluster, job, node, pod, tail, prefixed=every)


def _show_pod(
    cluster: Cluster, job: JsonObject, node: int, pod: JsonObject, tail: int | None, *, prefixed: bool
) -> None:
    prefix = line_prefix(node) if prefixed else b""
    failed = failed_start(pod)
    if failed is not None:
        say(f"pod {pod['metadata']['name']}: {failed}")
    container = failed.container if failed else n.WORKER_CONTAINER
    query = {"container": container, **({"tailLines": str(tail)} if tail is not None else {})}
    try:
        for line in read_lines(cluster, pod, query):
            print_line(prefix + line)
    except PluginError:
        with report_errors():
            if show_archived(cluster, job, node, attempt_of(pod), tail, prefixed=prefixed):
                return
        if not show_log_tail(job, node, attempt_of(pod), tail, prefix):
            raise


def _show_missing(cluster: Cluster, job: JsonObject, shown: dict[int, JsonObject], tail: int | None) -> None:
    """Print the archived logs of the nodes without a pod, or say that there are none."""
    nodes = int(job.get("status", {}).get("nodes") or 0)
    if len(shown) >= nodes:
        return
    found = False
    with report_errors():
        attempt = max(map(attempt_of, shown.values()))
        found = show_archived(cluster, job, None, attempt, tail, excluded=frozenset(shown))
    if not found:
        missing = ", ".join(str(node) for node in range(nodes) if node not in shown)
        name = job["metadata"]["name"]
        say(f"job {name}: the pods of these node ranks are gone, and their logs with them: {missing}")


def _first_failed(job: JsonObject, pods: dict[int, JsonObject]) -> dict[int, JsonObject]:
    """Return the pod of the worker that failed first, if it still exists, and say that node 0 has none."""
    failed = job.get("status", {}).get("firstFailure") or {}
    shown = {node: pod for node, pod in pods.items() if pod["metadata"]["name"] == failed.get("pod")}
    for node in shown:
        name = job["metadata"]["name"]
        say(f"job {name}: node 0 has no pod now. This is the log of node {node}, which failed first")
    return shown


def _describe_missing(job: JsonObject, node_rank: int | None, attempt: int | None, *, every: bool) -> str:
    status = job.get("status", {})
    which = "worker" if every else f"worker node {node_rank or 0}"
    which += "" if attempt is None else f" of attempt {attempt}"
    phase, message = status.get("phase") or "not known yet", status.get("message")
    summary = f"job {job['metadata']['name']}: has no {which} now; its phase is {phase}"
    summary = f"{summary}: {message}" if message else summary
    ended = phase in n.FINAL_PHASES or (attempt or 0) < len(status.get("attempts") or ())
    if not ended or logs_url(job):
        return summary
    return (
        f"{summary}. Its log was deleted with its pod: queue {job['spec']['jobQueue']} has no bucket for logs"
    )


def logs_url(job: JsonObject) -> str:
    """Return the URL of the job's archived logs, "" if they are not archived."""
    return str((job.get("status", {}).get("logs") or {}).get("url") or "")


def show_archived(
    cluster: Cluster,
    job: JsonObject,
    node_rank: int | None,
    attempt: int | None,
    tail: int | None,
    *,
    prefixed: bool | None = None,
    excluded: frozenset[int] = frozenset(),
) -> bool:
    """Print the archived log of a worker, or of all workers that are not `excluded`. Return whether there was one.

    Without `attempt`, print the last attempt with a log.

    Raises:
        PluginError: The log can't be read.
    """
    if not logs_url(job) or (node_rank is not None and node_rank_problem(job, node_rank)):
        return False
    which = LAST if attempt is None else str(attempt)
    logs = [log for log in read_logs(cluster, job, node_rank, which) if log.node not in excluded]
    for log in logs:
        prefix = line_prefix(log.node) if (node_rank is None if prefixed is None else prefixed) else b""
        _print_tail(log.text.split(b"\n")[:-1], tail, prefix)
    return bool(logs)


def show_log_tail(
    job: JsonObject, node_rank: int | None, attempt: int | None, tail: int | None, prefix: bytes = b""
) -> bool:
    """Print the end of the log in the status if it is of this node and attempt. Return whether it is."""
    failure = job.get("status", {}).get("firstFailure") or {}
    lines = str(failure.get("logTail") or "").splitlines()
    is_other_node = node_rank not in (None, failure.get("nodeRank"))
    if not lines or is_other_node or attempt not in (None, failure["attempt"]):
        return False
    say(
        f"pod {failure['pod']}: is gone, or its node is gone. These are its last lines, from the job's status "
        f"(node rank {failure.get('nodeRank', '-')}, attempt {failure['attempt']}, the first failure)"
    )
    _print_tail([line.encode(errors="replace") for line in lines], tail, prefix)
    return True


@contextmanager
def report_errors() -> Iterator[None]:
    """Print an error of the archived log and go on."""
    try:
        yield
    except PluginError as error:
        say(str(error))


def _print_tail(lines: list[bytes], tail: int | None, prefix: bytes) -> None:
    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        print_line(prefix + line)


def line_prefix(node_rank: int) -> bytes:
    """Return the prefix of each line of a node's log."""
    return f"[node {node_rank}] ".encode()


@dataclass(frozen=True)
class ArchivedLog:
    """The log of one worker in one attempt."""

    attempt: int
    node: int
    text: bytes


def read_logs(cluster: Cluster, job: JsonObject, node: int | None, attempt: str = LAST) -> list[ArchivedLog]:
    """Return the logs of an attempt: of one node, or of all nodes.

    Args:
        cluster: The cluster of the job.
        job: The TorchrunJob. Its `logs_url` must not be empty.
        node: The number of the node, None for all.
        attempt: The number of the attempt, or LAST for the last one with a log.

    Raises:
        PluginError: The logs can't be read, or there are none.
    """
    arguments = ["logs", "--url", logs_url(job), "--attempt", attempt]
    arguments += [] if node is None else ["--node", str(node)]
    pod = _pod(cluster, job, arguments)
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    say(f"reading the log from {logs_url(job)}")
    name = pod["metadata"]["name"]
    try:
        with explained("create pods", cluster.namespace):
            cluster.client.request("POST", path, None, pod)
        phase = _wait(cluster, name)
        with (
            explained("get pods/log", cluster.namespace),
            cluster.client.open(f"{path}/{name}/log", {"container": LOG_READER_CONTAINER}) as answer,
        ):
            data = b"".join(answer.chunks())
    except PluginError as error:
        raise PluginError(
            error.code, f"{error}. With permissions in AWS: {aws_command(job, node, attempt)}"
        ) from None
    finally:
        with suppress(ApiError, ApiUnavailable):
            cluster.client.request("DELETE", f"{path}/{name}")
    if phase != "Succeeded":
        lines = data.decode(errors="replace").strip().splitlines()
        raise PluginError(NOT_FOUND, lines[-1] if lines else f"pod {name}: is {phase}, and printed nothing")
    return list(_parse(data))


def aws_command(job: JsonObject, node: int | None, attempt: str) -> str:
    """Return the AWS command that shows the same logs."""
    if node is None or not attempt.isdecimal():
        return f"aws s3 ls --recursive {logs_url(job)}/"
    return f"aws s3 cp {logs_url(job)}/attempt-{attempt}/node-{node}.log -"


def _pod(cluster: Cluster, job: JsonObject, arguments: list[str]) -> JsonObject:
    name = job["spec"]["jobQueue"]
    queue, (spec, _) = cluster.queue(name), parse_job(job["spec"])
    settings = resolve(queue.get("spec"), spec)[0] if queue is not None and spec is not None else None
    image = str((job.get("status", {}).get("logs") or {}).get("image") or "")
    if settings is None or not image:
        problem = "was deleted" if queue is None else "is invalid"
        raise PluginError(
            NOT_FOUND,
            f"queue {name}: {problem}, but the log can only be read with its service account. With permissions in AWS: "
            + aws_command(job, None, LAST),
        )
    return build_log_reader(job, settings.queue, image, arguments, secrets.token_hex(3))


def _wait(cluster: Cluster, name: str) -> str:
    """Wait for the end of the pod, and return its phase.

    Raises:
        PluginError: The pod does not end in time.
    """
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        pod = cluster.pod(name)
        if pod is not None and is_over(pod):
            return str(pod["status"]["phase"])
        if pod is None or time.monotonic() > until:
            why = pending_reason(pod) if pod is not None else "is gone"
            raise PluginError(UNAVAILABLE, f"pod {name}: {why or f'still runs after {_WAIT_SECONDS:.0f} s'}")
        time.sleep(_POLL_SECONDS)


def _parse(data: bytes) -> Iterator[ArchivedLog]:
    """Parse the output of `trainyard.workspace.logs.print_logs`."""
    while data:
        head, _, data = data.partition(b"\n")
        try:
            header = json.loads(head)
            entry = ArchivedLog(int(header["attempt"]), int(header["node"]), data[: int(header["bytes"])])
        except (ValueError, KeyError, TypeError):
            raise PluginError(UNAVAILABLE, f"logs: {head[:100]!r} is not the header of a log") from None
        yield entry
        data = data[int(header["bytes"]) :]


def read_lines(cluster: Cluster, pod: JsonObject, query: dict[str, str]) -> Iterator[bytes]:
    """Yield the present lines of a container's log.

    Raises:
        PluginError: The log can't be read.
    """
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}/log"
    with (
        explained("get pods/log", cluster.namespace),
        _explain_missing_log(pod),
        cluster.client.open(path, query) as answer,
    ):
        yield from split(answer.chunks())


@contextmanager
def _explain_missing_log(pod: JsonObject) -> Iterator[None]:
    """Convert the API server's error for a container without a log to a PluginError."""
    try:
        yield
    except ApiError as error:
        if error.status != _NO_LOG:
            raise
        name, status = pod["metadata"]["name"], pod.get("status", {})
        message = f"pod {name}: has no log yet: {error.message}; logs -f waits for it"
        if is_over(pod):
            reason = status.get("message") or status.get("reason") or error.message
            message = f"pod {name}: has ended, and its worker has no log: {reason}"
        raise PluginError(UNAVAILABLE, message) from None


def split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a response that arrives in chunks."""
    rest: list[bytes] = []  # chunks of the present line, which may be long
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for each in others:
            yield b"".join(rest)
            rest = [each]
    if last := b"".join(rest):
        yield last


def print_line(line: bytes) -> None:
    """Print one line of a log."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


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
