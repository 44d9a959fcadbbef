"""Follow a run to its end and print what changes: nodes, the state of the launcher, the loss."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.cli.errors import CommandError
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, RetryPolicy

POLL_SECONDS = 1.0
# Longer than a restart of the API server takes, shorter than a person's patience.
UNREACHABLE_SECONDS = 60.0
# A log is read whole each time, so that a long one is read less often: this bounds what one pod's costs the API server.
# One attempt: the log of a node that does not answer must not delay the others. The next round tries again.
RETRY = RetryPolicy(timeout=0.0)
LOG_BYTES_PER_SECOND = 100_000
LAUNCHER_LINE = re.compile(r'launcher state=(?P<state>\S+) .*?reason=(?P<reason>".*") elapsed=\d+s$')


class FollowError(CommandError):
    """The run can't be followed: there is no such Job, or the API server does not respond."""


class JobGoneError(FollowError):
    """The run's Job was deleted."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended, and whether it ended before it was followed."""

    succeeded: bool
    message: str
    seconds: float
    is_earlier: bool = False


def job_result(job: dict[str, Any]) -> tuple[bool, str] | None:
    """Return (succeeded, message) of a finished Job, None while it runs."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            words = [condition.get("reason") or "", condition.get("message") or ""]
            return condition["type"] == "Complete", ": ".join(word for word in words if word)
    return None


def reason_of(line: str) -> str | None:
    """Return the reason in a launcher's line of state (launcher/actions.py), None for other lines."""
    found = LAUNCHER_LINE.match(line)
    if found is None:
        return None
    try:
        reason = json.loads(found["reason"])
    except ValueError:
        return None
    return str(reason)


def node_state(node: dict[str, Any]) -> str:
    """Return the state of a Node: `joined`, `ready` (with its accelerators, if any) or `leaving`."""
    if node["metadata"].get("deletionTimestamp"):
        return "leaving"
    ready = any(
        c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or []
    )
    labels = node["metadata"].get("labels") or {}
    return "ready" if ready and labels.get(names.LABEL_INITIALIZED) == "true" else "joined"


def describe_node(node: dict[str, Any]) -> str:
    """Return name, type, zone and accelerators of a Node."""
    labels = node["metadata"].get("labels") or {}
    allocatable = node["status"].get("allocatable") or {}
    devices = [
        f"{allocatable[name]} {name}"
        for name in ("nvidia.com/gpu", "aws.amazon.com/neuron", names.EFA_RESOURCE)
        if allocatable.get(name, "0") != "0"
    ]
    parts = [
        node["metadata"]["name"],
        labels.get(names.LABEL_INSTANCE_TYPE, "?"),
        labels.get(names.LABEL_ZONE, "?"),
        *devices,
    ]
    return " ".join(parts)


class Follower:
    """Reads the cluster of a kubeconfig, and prints what changes."""

    def __init__(self, kubeconfig: Path, report: Callable[[str], None]) -> None:
        self._client, _ = kubeconfigs.connect(str(kubeconfig), None, RETRY)
        self._report = report
        self._started = time.monotonic()
        # What has been printed: the state of each node, and the number of lines by the pod's uid.
        self._nodes: dict[str, str] = {}
        self._log_lines: dict[str, int] = {}
        # When a log is read again, by the pod's uid.
        self._next_read: dict[str, float] = {}
        self._reason = ""

    def follow(self, namespace: str, launcher_job: str, since: float | None = None) -> Result:
        """Block until the launcher's Job has ended.

        Args:
            since: Seconds since the epoch. A run that succeeded before prints nothing.

        Raises:
            FollowError: There is no such Job, or the API server did not respond for a minute.
        """
        last_answer = time.monotonic()
        while True:
            try:
                job = self._client.request(
                    "GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/{launcher_job}"
                )
                ended = job_result(job)
                if ended and ended[0] and since is not None and _job_end(job) < since:
                    return Result(
                        succeeded=True, message=ended[1], seconds=_job_seconds(job), is_earlier=True
                    )
                self._show_nodes()
                self._show_logs(namespace, launcher_job, to_the_end=ended is not None)
                last_answer = time.monotonic()
            except ApiError as error:
                if error.status == 404:
                    raise JobGoneError(f"Job {namespace}/{launcher_job} does not exist") from error
                raise FollowError(f"the API server refused: {error}") from error
            except ApiUnavailable as error:
                if time.monotonic() - last_answer > UNREACHABLE_SECONDS:
                    raise FollowError(
                        f"the API server has given no answer for {UNREACHABLE_SECONDS:.0f} s: {error}"
                    ) from error
            else:
                if ended:
                    # The Job's own message only says which exit code met which rule.
                    why = self._reason or ended[1]
                    return Result(succeeded=ended[0], message=why, seconds=_job_seconds(job))
            time.sleep(POLL_SECONDS)

    def _show_nodes(self) -> None:
        nodes = self._client.list_objects("/api/v1/nodes", {"labelSelector": names.LABEL_NODEPOOL})
        now = {node["metadata"]["name"]: node for node in nodes}
        for name, node in now.items():
            state = node_state(node)
            if self._nodes.get(name) != state:
                self._nodes[name] = state
                self._print(f"node {state}: {describe_node(node)}")
        for name in set(self._nodes) - set(now):
            del self._nodes[name]
            self._print(f"node gone: {name}")

    def _show_logs(self, namespace: str, launcher_job: str, *, to_the_end: bool) -> None:
        """Show the logs of the launcher, and of the workers of the PyTorchJob or TrainJob."""
        run_id = launcher_job.removeprefix(names.LAUNCHER_JOB_PREFIX)
        workers = f"{names.LABEL_JOB_NAME}={names.TRAINING_JOB_PREFIX}{run_id}"
        for selector in (f"job-name={launcher_job}", workers):
            path = f"/api/v1/namespaces/{namespace}/pods"
            for pod in self._client.list_objects(path, {"labelSelector": selector}):
                # After a restart the pods have the same names.
                name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                has_started = pod["status"].get("phase") in ("Running", "Succeeded", "Failed")
                if has_started and (to_the_end or time.monotonic() >= self._next_read.get(uid, 0)):
                    self._show_log(namespace, name, uid)

    def _show_log(self, namespace: str, pod: str, uid: str) -> None:
        try:
            text = self._client.read_text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log")
        except ApiError as error:
            if error.status in (400, 404):  # the container has not started yet, or the pod is gone
                return
            raise
        except ApiUnavailable:
            # The node does not answer. The other logs and the end of the Job are shown all the same.
            return
        lines = text.splitlines()
        shown = self._log_lines.get(uid, 0)
        # Fewer lines than before: the kubelet has started a new file.
        for line in lines[shown if shown <= len(lines) else 0 :]:
            self._print(f"[{pod}] {line}")
            self._reason = reason_of(line) or self._reason
        self._log_lines[uid] = len(lines)
        self._next_read[uid] = time.monotonic() + len(text) / LOG_BYTES_PER_SECOND

    def _print(self, line: str) -> None:
        self._report(f"{time.monotonic() - self._started:6.1f} s  {line}")


def _job_seconds(job: dict[str, Any]) -> float:
    """Return the seconds from the Job's start to its last condition."""
    started, ended = job["status"].get("startTime"), _job_end(job)
    return ended - _epoch(started) if started and ended else 0.0


def _job_end(job: dict[str, Any]) -> float:
    """Return the time of the Job's last condition in seconds since the epoch, 0 without one."""
    ends = [each["lastTransitionTime"] for each in job["status"].get("conditions") or []]
    return _epoch(max(ends)) if ends else 0.0


def _epoch(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
