"""The present and archived logs of a job's workers: `show_log` prints them. follow.py has the verb `logs`.

The log of a worker comes from its pod, else from the bucket of its queue, else from the job's status. A pod in the
cluster reads the bucket (`_read_archive`). The user needs permissions in the namespace, and none in AWS.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from launcher.observe import pending_reason
from trainyard.k8s.client import READ_SECONDS, ApiError, ApiUnavailable
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.output import NOT_FOUND, UNAVAILABLE, PluginError, say
from trainyard.operator import names as n
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.children import LOG_READER_CONTAINER, build_log_reader
from trainyard.operator.observe import read_pod_exit

JsonObject = dict[str, Any]
_POLL_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 90.0
_NO_LOG: Final = 400


@dataclass(frozen=True)
class Selection:
    """The requested logs: of one node (None: node 0, or the one that failed first), or of all nodes (`every`).

    Without `attempt`, of the last one. With `tail`, only this number of lines from the end.
    """

    node_rank: int | None = None
    every: bool = False
    attempt: int | None = None
    tail: int | None = None


def show_log(cluster: Cluster, job: JsonObject, selection: Selection) -> None:
    """Print the present log of a worker, or of all workers.

    If the pod or node of a worker is gone, print its archived log, or the end of the log that the job's status has of
    the first failed worker.

    Raises:
        PluginError: There is no log.
    """
    pods = newest_pods(cluster.workers(job), selection.attempt)
    node_rank, every, problem = selection.node_rank, selection.every, None
    shown = {node: pod for node, pod in pods.items() if every or node == (node_rank or 0)}
    if every and shown:
        _show_missing(cluster, job, shown, selection)
    if not shown:
        try:
            if _show_archived(cluster, job, selection):
                return
        except PluginError as error:
            problem = error
        if node_rank is None and not every and not problem:
            shown = _first_failed(job, pods)
    if not shown:
        if not _show_log_tail(job, selection):
            if not every and not problem:
                check_node_rank(job, node_rank or 0)
            raise problem or _missing(job, selection)
        if problem:
            say(str(problem))
    for node, pod in shown.items():
        _show_pod(cluster, job, pod, replace(selection, node_rank=node, attempt=attempt_of(pod)))


def show_gone(cluster: Cluster, job: JsonObject, selection: Selection) -> bool:
    """Print the archived log, or else the end of the log in the job's status. Return whether there is one."""
    try:
        if _show_archived(cluster, job, selection):
            return True
    except PluginError as error:
        say(str(error))
    return _show_log_tail(job, selection)


def _show_pod(cluster: Cluster, job: JsonObject, pod: JsonObject, selection: Selection) -> None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    container, problem = log_container(pod)
    if problem:
        say(f"pod {name}: {problem}")
    tail = {} if selection.tail is None else {"tailLines": str(selection.tail)}
    try:
        with explained("get pods/log", cluster.namespace):
            try:
                with open_log(cluster, pod, {"container": container, **tail}) as lines:
                    _print(lines, selection)
            except ApiError as error:
                if error.status != _NO_LOG:
                    raise
                why = f"has no log yet: {error.message}; logs -f waits for it"
                if is_over(pod):
                    reason = status.get("message") or status.get("reason") or error.message
                    why = f"has ended, and its worker has no log: {reason}"
                raise PluginError(UNAVAILABLE, f"pod {name}: {why}") from None
    except PluginError:
        if not show_gone(cluster, job, selection):
            raise


def _show_missing(
    cluster: Cluster, job: JsonObject, shown: dict[int, JsonObject], selection: Selection
) -> None:
    """Print the archived logs of the nodes without a pod, or say that there are none."""
    missing = [node for node in range(int(job.get("status", {}).get("nodes") or 0)) if node not in shown]
    if not missing:
        return
    found, attempt = False, max(map(attempt_of, shown.values()))
    try:
        found = _show_archived(cluster, job, replace(selection, attempt=attempt), excluded=shown)
    except PluginError as error:
        say(str(error))
    if not found:
        name, nodes = job["metadata"]["name"], ", ".join(map(str, missing))
        say(f"job {name}: the pods of these node ranks are gone, and their logs with them: {nodes}")


def _first_failed(job: JsonObject, pods: dict[int, JsonObject]) -> dict[int, JsonObject]:
    """Return the pod of the worker that failed first, if it still exists, and say that node 0 has none."""
    failed = job.get("status", {}).get("firstFailure") or {}
    shown = {node: pod for node, pod in pods.items() if pod["metadata"]["name"] == failed.get("pod")}
    for node in shown:
        name = job["metadata"]["name"]
        say(f"job {name}: node 0 has no pod now. This is the log of node {node}, which failed first")
    return shown


def _missing(job: JsonObject, selection: Selection) -> PluginError:
    status, attempt = job.get("status", {}), selection.attempt
    which = "worker" if selection.every else f"worker node {selection.node_rank or 0}"
    which += "" if attempt is None else f" of attempt {attempt}"
    phase, message = status.get("phase") or "not known yet", status.get("message")
    summary = f"job {job['metadata']['name']}: has no {which} now; its phase is {phase}"
    summary = f"{summary}: {message}" if message else summary
    ended = phase in n.FINAL_PHASES or (attempt or 0) < len(status.get("attempts") or ())
    if ended and not status.get("logs", {}).get("url"):
        queue = job["spec"]["jobQueue"]
        summary = f"{summary}. Its log was deleted with its pod: queue {queue} has no bucket for logs"
    return PluginError(NOT_FOUND, summary)


def _show_log_tail(job: JsonObject, selection: Selection) -> bool:
    """Print the end of the log in the status if it is of this node and attempt. Return whether it is."""
    failure = job.get("status", {}).get("firstFailure") or {}
    lines, node = str(failure.get("logTail") or "").splitlines(), failure.get("nodeRank")
    is_other = selection.node_rank not in (None, node) or selection.attempt not in (
        None,
        failure.get("attempt"),
    )
    if not lines or is_other:
        return False
    say(
        f"pod {failure['pod']}: is gone, or its node is gone. These are its last lines, from the job's status "
        f"(node rank {'-' if node is None else node}, attempt {failure['attempt']}, the first failure)"
    )
    _print_tail([line.encode(errors="replace") for line in lines], replace(selection, node_rank=node))
    return True


def _show_archived(
    cluster: Cluster, job: JsonObject, selection: Selection, *, excluded: Iterable[int] = ()
) -> bool:
    """Print the archived log of a worker, or of all workers that are not `excluded`. Return whether there was one.

    Without an attempt, print the last one with a log.

    Raises:
        PluginError: The log can't be read.
    """
    node = selection.node_rank if selection.every else selection.node_rank or 0
    if not job.get("status", {}).get("logs", {}).get("url"):
        return False
    if node is not None and node_rank_problem(job, node):
        return False
    logs = _read_archive(cluster, job, node, "last" if selection.attempt is None else str(selection.attempt))
    logs = [(node, text) for node, text in logs if node not in excluded]
    for node, text in logs:
        _print_tail(text.split(b"\n")[:-1], replace(selection, node_rank=node))
    return bool(logs)


def _read_archive(
    cluster: Cluster, job: JsonObject, node: int | None, attempt: str
) -> list[tuple[int, bytes]]:
    """Return the numbers of nodes and their logs in an attempt, `last` for the last one with a log.

    Raises:
        PluginError: The logs can't be read, or there are none.
    """
    archive, queue_name = job["status"]["logs"], job["spec"]["jobQueue"]
    url, image = archive["url"], str(archive.get("image") or "")
    in_aws = f"aws s3 ls --recursive {url}/"
    queue, (spec, _) = cluster.queue(queue_name), parse_job(job["spec"])
    settings = resolve(queue.get("spec"), spec)[0] if queue is not None and spec is not None else None
    if settings is None or not image:
        problem = "was deleted" if queue is None else "is invalid"
        raise PluginError(
            NOT_FOUND,
            f"queue {queue_name}: {problem}, but the log can only be read with its service account. With permissions "
            f"in AWS: {in_aws}",
        )
    arguments = ["logs", "--url", url, "--attempt", attempt]
    if node is not None:
        arguments += ["--node", str(node)]
        in_aws = f"aws s3 cp {url}/attempt-{attempt}/node-{node}.log -" if attempt.isdecimal() else in_aws
    pod = build_log_reader(job, settings.queue, image, arguments, secrets.token_hex(3))
    pods, name = cluster.path("pods"), pod["metadata"]["name"]
    say(f"reading the log from {url}")
    try:
        with explained("create pods", cluster.namespace):
            cluster.client.request("POST", pods, None, pod)
        phase = _wait_for_end(cluster, name)
        with (
            explained("get pods/log", cluster.namespace),
            cluster.client.open(f"{pods}/{name}/log", {"container": LOG_READER_CONTAINER}) as answer,
        ):
            data = b"".join(answer.chunks())
    except PluginError as error:
        raise PluginError(error.code, f"{error}. With permissions in AWS: {in_aws}") from None
    finally:
        with suppress(ApiError, ApiUnavailable):
            cluster.client.request("DELETE", f"{pods}/{name}")
    if phase != "Succeeded":
        lines = data.decode(errors="replace").strip().splitlines()
        raise PluginError(NOT_FOUND, lines[-1] if lines else f"pod {name}: is {phase}, and printed nothing")
    return list(_parse(data))


def _wait_for_end(cluster: Cluster, name: str) -> str:
    """Wait for the end of the pod, and return its phase. Raise PluginError if it does not end in time."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        pod = cluster.pod(name)
        if pod is not None and is_over(pod):
            return str(pod["status"]["phase"])
        if pod is None or time.monotonic() > until:
            why = pending_reason(pod) if pod is not None else "is gone"
            raise PluginError(UNAVAILABLE, f"pod {name}: {why or f'still runs after {_WAIT_SECONDS:.0f} s'}")
        time.sleep(_POLL_SECONDS)


def _parse(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Parse the output of `trainyard.workspace.logs.print_logs`."""
    while data:
        head, _, data = data.partition(b"\n")
        try:
            header = json.loads(head)
            node, size = int(header["node"]), int(header["bytes"])
        except (ValueError, KeyError, TypeError):
            raise PluginError(UNAVAILABLE, f"logs: {head[:100]!r} is not the header of a log") from None
        yield node, data[:size]
        data = data[size:]


@contextmanager
def open_log(
    cluster: Cluster, pod: JsonObject, query: dict[str, str], read_timeout: float = READ_SECONDS
) -> Iterator[Iterator[bytes]]:
    """Yield the lines of a container's log. Raise ApiError and ApiUnavailable."""
    path = f"{cluster.path('pods')}/{pod['metadata']['name']}/log"
    with cluster.client.open(path, query, read_timeout=read_timeout) as answer:
        yield split(answer.chunks())


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


def _print_tail(lines: list[bytes], selection: Selection) -> None:
    tail = selection.tail
    _print(lines if tail is None else lines[max(0, len(lines) - tail) :], selection)


def _print(lines: Iterable[bytes], selection: Selection) -> None:
    prefix = line_prefix(selection.node_rank or 0) if selection.every else b""
    for line in lines:
        print_line(prefix + line)


def print_line(line: bytes) -> None:
    """Print one line of a log."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def line_prefix(node_rank: int) -> bytes:
    """Return the prefix of each line of a node's log."""
    return f"[node {node_rank}] ".encode()


def log_container(pod: JsonObject) -> tuple[str, str]:
    """Return the container with the log, and why the worker can't start, "" if it has started or may still start.

    A worker does not start if an init container fails, or the runtime can't start the worker itself.
    """
    end, problem = read_pod_exit(pod), "worker did not start: "
    if end.said and not end.before:
        return n.WORKER_CONTAINER, f"{problem}{end.said} ({end.reason}), exit code {end.code or 0}"
    for each in () if has_started(pod) else pod.get("status", {}).get("initContainerStatuses", ()):
        state = each.get("state", {})
        # Between restarts, a container is waiting.
        before = each.get("lastState", {}).get("terminated") if "waiting" in state else None
        ended = state.get("terminated") or before
        if ended and ended.get("exitCode"):
            why = f"init container {each['name']} failed with exit code {ended['exitCode']}"
            return str(each["name"]), f"{problem}{why}"
    return n.WORKER_CONTAINER, ""


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
    statuses = pod.get("status", {}).get("containerStatuses", ())
    worker = (each.get("state", {}) for each in statuses if each.get("name") == n.WORKER_CONTAINER)
    found: JsonObject = next(worker, {})
    return found


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
