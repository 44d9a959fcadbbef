"""Print logs of workers whose pods are gone: from the bucket of the job's queue, or from the job's status.

A pod in the cluster reads the bucket (`read_logs`). The user needs permissions in the namespace, and none in AWS.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from launcher.observe import pending_reason
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.errors import NOT_FOUND, UNAVAILABLE, PluginError
from trainyard.kubectl.log_stream import print_line
from trainyard.kubectl.pod_state import node_rank_problem
from trainyard.kubectl.progress import say
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.children import LOG_READER_CONTAINER, build_log_reader

JsonObject = dict[str, Any]
LAST: Final = "last"
_POLL_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 90.0
_TERMINAL_PHASES: Final = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ArchivedLog:
    """The log of one worker in one attempt."""

    attempt: int
    node: int
    text: bytes


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
            f"aws s3 ls --recursive {logs_url(job)}/",
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
        phase = str((pod or {}).get("status", {}).get("phase") or "")
        if phase in _TERMINAL_PHASES:
            return phase
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
