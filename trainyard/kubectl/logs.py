"""`logs`, and `submit --follow`: print a job's logs (`show_log`), or follow them until the job ends (`follow`).

The log of a worker comes from its pod, else from the bucket of its queue, else from the job's status. A pod in the
cluster reads the bucket (`_read_archive`). The user needs permissions in the namespace, and none in AWS.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.k8s.client import READ_SECONDS, RETRIED_STATUS, ApiError, ApiUnavailable
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.output import (
    DONE,
    JOB_FAILED,
    NOT_FOUND,
    PROGRAM,
    REMOVED,
    UNAVAILABLE,
    USAGE,
    PluginError,
    say,
)
from trainyard.operator import names as n
from trainyard.operator.api.fields import parse_time
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.children import LOG_READER_CONTAINER, build_log_reader
from trainyard.operator.observe import container_statuses, is_over, read_pod_exit

JsonObject = dict[str, Any]
_POLL_SECONDS: Final = 1.0
# A job may print nothing for a long time. The keep-alive of `Client` detects a lost connection.
_SILENCE_SECONDS: Final = 3600.0
# Before the API server has answered, a log only counts as silent after this time. The client waits longer.
_ANSWER_SECONDS: Final = 10.0
# The kubelet closes a log shortly before it reports the end of the pod.
_REPORT_SECONDS: Final = 1.0
# The timestamp that the kubelet adds before each line of a container (RFC 3339).
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
# After the end of a job or attempt, a log without a new line for this time is finished. Its worker may still have up to
# 45 s to end.
_DRAIN_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 5.0
# The limit for a log that goes on after a failed job.
_MAX_DRAIN_SECONDS: Final = 10.0
# The delay of a watch after the API server's answer that the job is gone.
_WATCH_DELAY_SECONDS: Final = 5.0
_WATCH_POLL_SECONDS: Final = 0.05
# For the pod that reads the bucket.
_READER_SECONDS: Final = 90.0
_READER_POLL_SECONDS: Final = 0.5
# The status codes of a log whose container has not started, or whose pod is gone.
_NO_LOG, _GONE = 400, 404


@dataclass(frozen=True)
class Selection:
    """The requested logs: of one node (None: node 0, or the one that failed first), or of all nodes (`all_nodes`).

    Without `attempt`, of the last one. With `tail`, only this number of lines from the end.
    """

    node_rank: int | None = None
    all_nodes: bool = False
    attempt: int | None = None
    tail: int | None = None


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    """Print or follow the logs. Return the exit code."""
    attempt, name = options.attempt, options.name
    if options.follow and (attempt is not None or options.previous):
        flag = "--previous" if options.previous else "--attempt"
        raise PluginError(USAGE, f"{flag}: excludes --follow, which shows each attempt from the last one on")
    job = cluster.job(name)
    if options.previous:
        attempt = int(job.get("status", {}).get("attempt") or 0) - 1
        if attempt < 0:
            raise PluginError(USAGE, f"--previous: job {name} has had one attempt. Leave it out.")
    selection = Selection(options.node_rank, all_nodes=options.all, attempt=attempt, tail=options.tail)
    if options.follow:
        return follow(cluster, job, selection)
    show_log(cluster, job, selection)
    return DONE


def show_log(cluster: Cluster, job: JsonObject, selection: Selection) -> None:
    """Print the present log of a worker, or of all workers.

    If the pod or node of a worker is gone, print its archived log, or the end of the log that the job's status has of
    the first failed worker.
    """
    pods = newest_pods(cluster.workers(job), selection.attempt)
    node_rank, all_nodes, problem = selection.node_rank, selection.all_nodes, None
    shown = {node: pod for node, pod in pods.items() if all_nodes or node == (node_rank or 0)}
    if all_nodes and shown:
        _show_missing(cluster, job, shown, selection)
    if not shown:
        try:
            if _show_archived(cluster, job, selection):
                return
        except PluginError as error:
            problem = error
        if node_rank is None and not all_nodes and not problem:
            shown = _first_failed(job, pods)
    if not shown:
        if not _show_log_tail(job, selection):
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
    count = 0

    def counted(lines: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal count
        for line in lines:
            count += 1
            yield line

    try:
        with explained("get pods/log", cluster.namespace):
            try:
                with open_log(cluster, pod, {"container": container, **tail}) as lines:
                    _print(counted(lines), selection)
            except ApiError as error:
                if error.status != _NO_LOG:
                    raise
                why = f"has no log yet: {error.message}; logs -f waits for it"
                if is_over(pod):
                    reason = status.get("message") or status.get("reason") or error.message
                    why = f"has ended, and its worker has no log: {reason}"
                raise PluginError(UNAVAILABLE, f"pod {name}: {why}") from None
    except PluginError as error:
        if count:  # the archive would repeat these lines
            problem = f"pod {name}: its log ended after {count} lines: {error}. Run the command again"
            raise PluginError(error.code, problem) from None
        if not show_gone(cluster, job, selection):
            raise


def _show_missing(
    cluster: Cluster, job: JsonObject, shown: dict[int, JsonObject], selection: Selection
) -> None:
    """Print the archived logs of the nodes without a pod, or say that there are none."""
    found, attempt = False, max(map(attempt_of, shown.values()))
    is_present = _is_present_attempt(job, attempt)
    # The status has only the size of the present attempt. Another one had at least the nodes that are shown.
    nodes = int(job.get("status", {}).get("nodes") or 0) if is_present else max(shown)
    missing = [node for node in range(nodes) if node not in shown]
    if is_present and not missing:
        return
    try:
        found = _show_archived(cluster, job, replace(selection, attempt=attempt), excluded=shown)
    except PluginError as error:
        say(str(error))
    if missing and not found:
        name, ranks = job["metadata"]["name"], ", ".join(map(str, missing))
        say(f"job {name}: the pods of these node ranks are gone, and their logs with them: {ranks}")


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
    if why := _selection_problem(job, selection):
        return PluginError(NOT_FOUND, why)
    which = "worker" if selection.all_nodes else f"worker node {selection.node_rank or 0}"
    which += "" if attempt is None else f" of attempt {attempt}"
    phase, message = status.get("phase") or "not known yet", status.get("message")
    summary = f"job {job['metadata']['name']}: has no {which} now; its phase is {phase}"
    summary = f"{summary}: {message}" if message else summary
    ended = phase in n.FINAL_PHASES or (attempt is not None and attempt < (status.get("attempt") or 0))
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
    """
    node = selection.node_rank if selection.all_nodes else selection.node_rank or 0
    if not job.get("status", {}).get("logs", {}).get("url"):
        return False
    if _selection_problem(job, selection):
        return False
    logs = _read_archive(cluster, job, node, "last" if selection.attempt is None else str(selection.attempt))
    logs = [(node, text) for node, text in logs if node not in excluded]
    for node, text in logs:
        _print_tail(text.split(b"\n")[:-1], replace(selection, node_rank=node))
    return bool(logs)


def _read_archive(
    cluster: Cluster, job: JsonObject, node: int | None, attempt: str
) -> list[tuple[int, bytes]]:
    """Return the numbers of nodes and their logs in an attempt, `last` for the last one with a log."""
    archive, queue_name = job["status"]["logs"], job["spec"]["jobQueue"]
    url, image = archive["url"], str(archive.get("image") or "")
    in_aws = f"aws s3 ls --recursive {url}/"
    queue, (spec, _) = cluster.find(n.QUEUE_PLURAL, queue_name), parse_job(job["spec"])
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
    until = time.monotonic() + _READER_SECONDS
    while True:
        pod = cluster.find("pods", name)
        if pod is not None and is_over(pod):
            return str(pod["status"]["phase"])
        if pod is None or time.monotonic() > until:
            why = pending_reason(pod) if pod is not None else "is gone"
            raise PluginError(
                UNAVAILABLE, f"pod {name}: {why or f'still runs after {_READER_SECONDS:.0f} s'}"
            )
        time.sleep(_READER_POLL_SECONDS)


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


def follow(cluster: Cluster, job: JsonObject, selection: Selection | None = None) -> int:
    """Print the log of a worker, or of all workers, until the job ends. Return the job's exit code.

    Print phases, and the cause of each restart, to standard error.
    """
    reader = JobReader(cluster, job)
    with reader.watching():
        return _Follower(cluster, reader, selection or Selection()).run()


class JobReader:
    """Read a followed job, also at its end: with `ttlSecondsAfterFinished: 0` it may be deleted at once.

    The kubelet reports the end of a log up to 5 s late. A watch has seen the job's end by then.
    """

    def __init__(self, cluster: Cluster, job: JsonObject) -> None:
        self._cluster = cluster
        self._name, self._uid = job["metadata"]["name"], job["metadata"]["uid"]
        self._ended: JsonObject | None = None
        self._phase = ""  # the last known one
        source = ListWatch(
            path=cluster.path(n.JOB_PLURAL),
            selectors=(("fieldSelector", f"metadata.name={self._name}"),),
            convert=self._record,
        )
        self._watch = Informer(cluster.client, source, self._stop_if_refused)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._watch.start()
        try:
            yield
        finally:
            self._watch.stop()

    def read(self) -> JsonObject:
        """Return the job, or its last state if it was deleted. Raise PluginError if its end was not seen."""
        found = self._cluster.find(n.JOB_PLURAL, self._name)
        if found is None or found["metadata"]["uid"] != self._uid:
            until = time.monotonic() + _WATCH_DELAY_SECONDS
            while self._ended is None and self._is_watched() and time.monotonic() < until:
                time.sleep(_WATCH_POLL_SECONDS)
            found = self._ended
        if found is None:
            phase = self._phase or n.PHASE_PENDING
            why = f"was deleted, for example by {PROGRAM} cancel; its last known phase is {phase}"
            raise PluginError(REMOVED, f"job {self._name}: {why}")
        self._record(found)
        return found

    def _is_watched(self) -> bool:
        """Return whether the watch still has the job; False if it can't be watched."""
        try:
            return self._uid in self._watch.items()
        except (ApiError, ApiUnavailable):
            return False

    def _record(self, item: JsonObject) -> str:
        """Keep the phase, and the state of an ended job. The watch's thread calls this, too."""
        uid = str(item["metadata"]["uid"])
        if uid == self._uid:
            self._phase = item.get("status", {}).get("phase") or ""
            self._ended = item if self._phase in n.FINAL_PHASES else self._ended
        return uid

    def _stop_if_refused(self) -> None:
        with suppress(ApiUnavailable):
            try:
                self._watch.items()
            except ApiError:  # the user may not watch jobs
                self._watch.stop()


class _Follower:
    """Read the job once a second. Each log has its own thread, so a slow log does not delay the others."""

    def __init__(self, cluster: Cluster, reader: JobReader, selection: Selection) -> None:
        self._cluster, self._reader, self._selection = cluster, reader, selection
        self._last_report = self._last_missing = ""
        self._last_attempt: int | None = None
        self._is_pod_missing = False
        self._began = time.monotonic()
        # The last log of each node.
        self._logs: dict[int, PodLog] = {}
        self._wakeup = threading.Event()

    def run(self) -> int:
        over: float | None = None
        try:
            while True:
                job = self._reader.read()
                status = job.get("status", {})
                phase = status.get("phase") or n.PHASE_PENDING
                self._report(job["metadata"]["name"], phase, status)
                pods = newest_pods(self._cluster.workers(job))
                if not self._selection.all_nodes:
                    node = self._selection.node_rank or 0
                    self._report_missing_worker(job, phase, pods.get(node), node)
                    pods = {node: pods[node]} if node in pods else {}
                self._start_logs(pods)
                if phase in n.FINAL_PHASES:
                    over = over or time.monotonic()
                    if self._is_drained(over, phase == n.PHASE_FAILED):
                        if not (pods or self._logs):
                            show_gone(self._cluster, job, self._selection)
                        return exit_code(status)
                self._wait()
        except PluginError:
            began = time.monotonic()
            while not self._is_drained(began, True):
                self._wait()
            raise
        finally:
            for log in self._logs.values():
                log.stop()

    def _report(self, name: str, phase: str, status: JsonObject) -> None:
        """Print the attempts that ended since the last call, with their causes, then the phase."""
        message = status.get("message")
        ended = status.get("attempts") or []
        for attempt in ended if self._last_attempt is not None else []:
            # The phase may have the same message.
            if attempt["attempt"] > self._last_attempt and attempt.get("message") != message:
                say(f"{name}: {n.PHASE_RESTARTING}: {attempt.get('message') or attempt.get('reason')}")
        self._last_attempt = max((attempt["attempt"] for attempt in ended), default=-1)
        now = ": ".join(str(part) for part in (phase, message or status.get("reason")) if part)
        # After `submit --follow`, the controller needs a moment to see the workspace.
        is_new = time.monotonic() < self._began + _SETTLE_SECONDS
        if status.get("reason") == n.REASON_WAITING_FOR_WORKSPACE and is_new:
            return
        if now != self._last_report:
            say(f"{name}: {now}")
            self._last_report = now

    def _report_missing_worker(self, job: JsonObject, phase: str, pod: JsonObject | None, node: int) -> None:
        """Print what the worker of a running job waits for. The phase of a pending job says that itself."""
        if pod is None and (problem := node_rank_problem(job, node)):
            raise PluginError(NOT_FOUND, problem)
        was_missing, self._is_pod_missing = self._is_pod_missing, pod is None
        if pod is not None and (has_started(pod) or is_over(pod) or log_container(pod)[1]):
            return
        # The job and its pods are two reads: between them, a removed job loses its pods.
        if phase != n.PHASE_RUNNING or (pod is None and not was_missing):
            return
        why = f"waits for a pod of node {node}"
        if pod is not None:
            created = parse_time(pod["metadata"].get("creationTimestamp"))
            is_late = created is not None and time.time() - created >= PATIENCE_SECONDS
            pending = (pending_reason(pod) if is_late else "") or "has not started"
            why = f"waits for node {node}: pod {pod['metadata']['name']} {pending}"
        if why != self._last_missing:
            say(f"{job['metadata']['name']}: {why}")
            self._last_missing = why

    def _start_logs(self, pods: dict[int, JsonObject]) -> None:
        """Follow each started worker, and the next one of its node when the earlier log is silent.

        Raise the error of a log.
        """
        for log in self._logs.values():
            if log.error is not None:
                raise log.error
        for node, pod in pods.items():
            earlier, uid = self._logs.get(node), pod["metadata"]["uid"]
            is_busy = earlier and (earlier.uid == uid or not earlier.is_silent(_DRAIN_SECONDS))
            if is_busy or not (has_started(pod) or log_container(pod)[1]):
                continue
            if earlier is not None:
                earlier.stop()
            # Of the node's next attempts, the whole log is printed.
            tail = self._selection.tail if earlier is None else None
            selection = replace(self._selection, node_rank=node, tail=tail)
            self._logs[node] = PodLog(self._cluster, pod, selection, self._wakeup)
            self._logs[node].start()

    def _is_drained(self, over: float, failed: bool) -> bool:
        """Return whether all logs have ended or are silent. `over` is the time of the job's end."""
        if failed and time.monotonic() - over >= _MAX_DRAIN_SECONDS:
            return True
        return all(log.is_silent(_DRAIN_SECONDS) for log in self._logs.values())

    def _wait(self) -> None:
        """Wait until the next read of the job, or until the end of a log."""
        self._wakeup.wait(_POLL_SECONDS)
        self._wakeup.clear()


def exit_code(status: JsonObject) -> int:
    """Return the exit code of the job's failed worker, 0 if the job succeeded, 1 if the code is unknown."""
    if status.get("phase") == n.PHASE_SUCCEEDED:
        return DONE
    code = status.get("exitCode")
    return code if isinstance(code, int) and 0 < code < 256 else JOB_FAILED


class PodLog(threading.Thread):
    """Print the lines of one pod until it ends. Each line is printed once, also after a lost connection.

    `error` is the exception that ended the thread, if any.
    """

    def __init__(
        self, cluster: Cluster, pod: JsonObject, selection: Selection, wakeup: threading.Event
    ) -> None:
        super().__init__(name=f"log of {pod['metadata']['name']}", daemon=True)
        self.uid: str = pod["metadata"]["uid"]
        self.error: Exception | None = None
        self._cluster, self._pod, self._selection, self._wakeup = cluster, pod, selection, wakeup
        self._problem = ""
        # The last timestamp, and the number of printed lines with it.
        self._stamp, self._lines_at_stamp = "", 0
        self._is_stopped = self._has_ended = self._is_open = False
        self._last = time.monotonic()

    def stop(self) -> None:
        self._is_stopped = True

    def is_silent(self, seconds: float) -> bool:
        """Return whether the log has ended, nothing was printed for this time, or the API server does not answer."""
        limit = seconds if self._is_open else max(seconds, _ANSWER_SECONDS)
        return (self._has_ended and self.error is None) or time.monotonic() - self._last >= limit

    def run(self) -> None:
        try:
            while not (self._is_stopped or self._print_new() or self._is_over()):
                continue
        except Exception as error:  # the main thread raises it
            self.error = error
        self._has_ended = True
        self._wakeup.set()

    def _is_over(self) -> bool:
        """Return whether the pod has ended. Wait a moment for its report."""
        until = time.monotonic() + _REPORT_SECONDS
        while True:
            found = self._cluster.find("pods", self._pod["metadata"]["name"])
            if found is None or found["metadata"]["uid"] != self.uid or has_ended(found):
                return True
            self._pod = found
            if self._is_stopped or time.monotonic() >= until:
                return False
            time.sleep(_REPORT_SECONDS / 5)

    def _print_new(self) -> bool:
        """Print the new lines until the connection ends. Return whether the log is gone."""
        container, problem = log_container(self._pod)
        self._report(problem)
        query = {"container": container, "follow": "true", "timestamps": "true"}
        if self._stamp:  # sinceTime has whole seconds
            query["sinceTime"] = f"{self._stamp[:19]}Z"
        elif self._selection.tail is not None:
            query["tailLines"] = str(self._selection.tail)
        self._is_open = False
        try:
            with open_log(self._cluster, self._pod, query, _SILENCE_SECONDS) as lines:
                self._last, self._is_open = time.monotonic(), True
                for line in self._new_lines(lines):
                    _print((line,), self._selection)
                    self._last = time.monotonic()
        except ApiUnavailable:  # the connection broke
            pass
        except ApiError as error:
            if error.status in RETRIED_STATUS:  # 500 if the kubelet of a lost node does not answer
                self._report(f"its log can't be read: {error.message}. Waiting for the pod")
            elif error.status in (_NO_LOG, _GONE):
                return error.status == _GONE
            else:
                with explained("get pods/log", self._cluster.namespace):
                    raise
        return False

    def _report(self, problem: str) -> None:
        """Print a problem of the pod, once."""
        if problem not in ("", self._problem):
            say(f"pod {self._pod['metadata']['name']}: {problem}")
            self._problem = problem

    def _new_lines(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the lines that were not printed before, without their timestamps."""
        before, left = self._stamp, self._lines_at_stamp
        for line in lines:
            if self._is_stopped:
                return
            stamp, _, text = line.partition(b" ")
            if not _STAMP.fullmatch(stamp):  # of the kubelet itself, such as that it can't follow the log
                yield line
                continue
            # With nine digits of the second, timestamps compare as strings.
            whole, _, part = stamp.decode().rstrip("Z").partition(".")
            when = f"{whole}.{part:0<9}"
            if when < before or (when == before and left > 0):
                left -= when == before
                continue
            self._lines_at_stamp = self._lines_at_stamp + 1 if when == self._stamp else 1
            self._stamp = when
            yield text


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
        for line in others:
            yield b"".join(rest)
            rest = [line]
    if last := b"".join(rest):
        yield last


def _print_tail(lines: list[bytes], selection: Selection) -> None:
    tail = selection.tail
    _print(lines if tail is None else lines[max(0, len(lines) - tail) :], selection)


def _print(lines: Iterable[bytes], selection: Selection) -> None:
    """Print the lines of node `node_rank`."""
    prefix = f"[node {selection.node_rank}] ".encode() if selection.all_nodes else b""
    for line in lines:
        sys.stdout.buffer.write(prefix + line + b"\n")
        sys.stdout.buffer.flush()


def log_container(pod: JsonObject) -> tuple[str, str]:
    """Return the container with the log, and why the worker can't start, "" if it has started or may still start.

    A worker does not start if an init container fails, or the runtime can't start the worker itself.
    """
    end, problem = read_pod_exit(pod), "worker did not start: "
    if end.start_error and not end.failed_init_container:
        return n.WORKER_CONTAINER, f"{problem}{end.start_error} ({end.reason}), exit code {end.code or 0}"
    for status in () if has_started(pod) else pod.get("status", {}).get("initContainerStatuses", ()):
        state = status.get("state", {})
        # Between restarts, a container is waiting.
        before = status.get("lastState", {}).get("terminated") if "waiting" in state else None
        ended = state.get("terminated") or before
        if ended and ended.get("exitCode"):
            why = f"init container {status['name']} failed with exit code {ended['exitCode']}"
            return str(status["name"]), f"{problem}{why}"
    return n.WORKER_CONTAINER, ""


def has_started(pod: JsonObject) -> bool:
    """Return whether the worker has a log."""
    return bool({"running", "terminated"} & _worker_state(pod).keys())


def has_ended(pod: JsonObject) -> bool:
    """Return whether the log is complete."""
    return "terminated" in _worker_state(pod) or is_over(pod)


def _worker_state(pod: JsonObject) -> JsonObject:
    state: JsonObject = container_statuses(pod).get(n.WORKER_CONTAINER, {}).get("state") or {}
    return state


def newest_pods(pods: Iterable[JsonObject], attempt: int | None = None) -> dict[int, JsonObject]:
    """Return the newest pod of each node by node rank, of any attempt or of this one."""
    found: dict[int, JsonObject] = {}
    for pod in sorted(pods, key=lambda pod: (attempt_of(pod), pod["metadata"]["creationTimestamp"])):
        labels = pod["metadata"]["labels"]
        if attempt in (None, attempt_of(pod)):
            found[int(labels.get(n.LABEL_NODE) or labels[n.LABEL_INDEX])] = pod
    return dict(sorted(found.items()))


def attempt_of(pod: JsonObject) -> int:
    """Return the attempt of a worker's pod."""
    return int(pod["metadata"]["labels"][n.LABEL_ATTEMPT])


def _is_present_attempt(job: JsonObject, attempt: int | None) -> bool:
    return attempt in (None, job.get("status", {}).get("attempt") or 0)


def _selection_problem(job: JsonObject, selection: Selection) -> str:
    """Return why the job can't have this log: it has not had the attempt or the node. Return "" if it may have it."""
    last, attempt, name = job.get("status", {}).get("attempt"), selection.attempt, job["metadata"]["name"]
    if attempt is not None and last is not None and attempt > last:
        attempts = f"attempts 0 to {last}" if last else "attempt 0"
        return f"--attempt: {attempt} is too high: job {name} has had {attempts}"
    if selection.all_nodes or not _is_present_attempt(job, attempt):
        return ""
    return node_rank_problem(job, selection.node_rank or 0)


def node_rank_problem(job: JsonObject, node_rank: int) -> str:
    """Return why `--node-rank` is too high for the job, "" if it is not, or if the job's size is unknown."""
    spec, status = job.get("spec", {}), job.get("status", {})
    elastic = spec.get("elastic") or {}
    # A resized job still has its former size.
    sizes = [size for size in (elastic.get("maxNodes"), spec.get("numNodes"), status.get("nodes")) if size]
    if not sizes or node_rank < max(sizes):
        return ""
    size, name = max(sizes), job["metadata"]["name"]
    nodes = "1 node, number 0" if size == 1 else f"{size} nodes, number 0 to {size - 1}"
    return f"--node-rank: {node_rank} is not a node of job {name}, which has {'at most ' if elastic else ''}{nodes}"
