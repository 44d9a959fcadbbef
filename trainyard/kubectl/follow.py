"""`logs`, and `submit --follow`: print a job's logs, or follow them over its attempts until it ends (`follow`)."""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.logs import (
    Selection,
    check_node_rank,
    has_ended,
    has_started,
    is_over,
    line_prefix,
    log_container,
    newest_pods,
    open_log,
    print_line,
    show_gone,
    show_log,
)
from trainyard.kubectl.output import DONE, JOB_FAILED, REMOVED, USAGE, PluginError, say
from trainyard.operator import names as n
from trainyard.operator.api.fields import parse_time

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
    selection = Selection(options.node_rank, every=options.all, attempt=attempt, tail=options.tail)
    if options.follow:
        return follow(cluster, job, selection)
    show_log(cluster, job, selection)
    return DONE


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
        self._changes = threading.Condition()
        source = ListWatch(
            path=cluster.path(n.JOB_PLURAL),
            selectors=(("fieldSelector", f"metadata.name={self._name}"),),
            convert=self._record,
        )
        self._watch = Informer(cluster.client, source, self._on_change)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the job."""
        self._watch.start()
        try:
            yield
        finally:
            self._watch.stop()

    def read(self) -> JsonObject:
        """Return the job, or its last state if it was deleted. Raise PluginError if its end was not seen."""
        found = self._cluster.find(n.JOB_PLURAL, self._name)
        if found is None or found["metadata"]["uid"] != self._uid:
            with self._changes:
                self._changes.wait_for(lambda: self._ended or not self._is_watched(), _WATCH_DELAY_SECONDS)
            found = self._ended
        if found is None:
            raise PluginError(REMOVED, f"job {self._name}: was removed; how it ended is not known")
        self._record(found)
        return found

    def _is_watched(self) -> bool:
        """Return whether the watch still has the job; False if it can't be watched."""
        try:
            return self._uid in self._watch.items()
        except (ApiError, ApiUnavailable):
            return False

    def _record(self, item: JsonObject) -> str:
        """Keep the state of an ended job. The watch's thread calls this, too."""
        uid = str(item["metadata"]["uid"])
        if uid == self._uid and item.get("status", {}).get("phase") in n.FINAL_PHASES:
            self._ended = item
        return uid

    def _on_change(self) -> None:
        try:
            self._watch.items()
        except ApiError:  # the user may not watch jobs
            self._watch.stop()
        except ApiUnavailable:
            return
        with self._changes:
            self._changes.notify_all()


class _Follower:
    """Read the job once a second. Each log has its own thread, so a slow log does not delay the others."""

    def __init__(self, cluster: Cluster, reader: JobReader, selection: Selection) -> None:
        self._cluster, self._reader, self._selection = cluster, reader, selection
        self._last_report = self._last_missing = ""
        self._last_attempt: int | None = None
        self._began = time.monotonic()
        # The last log of each node.
        self._logs: dict[int, PodLog] = {}
        self._wakeup = threading.Event()

    def run(self) -> int:
        """Follow until the job ends."""
        over: float | None = None
        try:
            while True:
                job = self._reader.read()
                status = job.get("status", {})
                phase = status.get("phase") or n.PHASE_PENDING
                self._report(job["metadata"]["name"], phase, status)
                pods = newest_pods(self._cluster.workers(job))
                if not self._selection.every:
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
            for each in self._logs.values():
                each.stop()

    def _report(self, name: str, phase: str, status: JsonObject) -> None:
        """Print the attempts that ended since the last call, with their causes, then the phase."""
        message = status.get("message")
        ended = [each for each in status.get("attempts") or [] if isinstance(each.get("attempt"), int)]
        for each in ended if self._last_attempt is not None else []:
            # The phase may have the same message.
            if each["attempt"] > self._last_attempt and each.get("message") != message:
                say(f"{name}: {n.PHASE_RESTARTING}: {each.get('message') or each.get('reason')}")
        self._last_attempt = max((each["attempt"] for each in ended), default=-1)
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
        if pod is None:
            check_node_rank(job, node)
        elif has_started(pod) or is_over(pod) or log_container(pod)[1]:
            return
        if phase != n.PHASE_RUNNING:
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
            earlier = self._logs.get(node)
            if earlier is not None and (
                earlier.uid == pod["metadata"]["uid"] or not earlier.is_silent(_DRAIN_SECONDS)
            ):
                continue
            if not (has_started(pod) or log_container(pod)[1]):
                continue
            if earlier is not None:
                earlier.stop()
            prefix = line_prefix(node) if self._selection.every else b""
            # Of the node's next attempts, the whole log is printed.
            tail = self._selection.tail if earlier is None else None
            self._logs[node] = PodLog(self._cluster, pod, self._wakeup, tail=tail, prefix=prefix)
            self._logs[node].start()

    def _is_drained(self, over: float, failed: bool) -> bool:
        """Return whether all logs have ended or are silent, `over` being the time of the job's end."""
        if failed and time.monotonic() - over >= _MAX_DRAIN_SECONDS:
            return True
        return all(each.is_silent(_DRAIN_SECONDS) for each in self._logs.values())

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
        self, cluster: Cluster, pod: JsonObject, wakeup: threading.Event, *, tail: int | None, prefix: bytes
    ) -> None:
        super().__init__(name=f"log of {pod['metadata']['name']}", daemon=True)
        self.uid: str = pod["metadata"]["uid"]
        self.error: Exception | None = None
        self._cluster, self._pod, self._wakeup = cluster, pod, wakeup
        self._tail, self._prefix = tail, prefix
        self._problem = ""
        # The last timestamp, and the number of printed lines with it.
        self._stamp, self._lines_at_stamp = "", 0
        self._is_stopped = self._has_ended = self._is_open = False
        self._last = time.monotonic()

    def stop(self) -> None:
        """Stop printing."""
        self._is_stopped = True

    def is_silent(self, seconds: float) -> bool:
        """Return whether the log has ended, nothing was printed for this time, or the API server does not answer."""
        limit = seconds if self._is_open else max(seconds, _ANSWER_SECONDS)
        return self._has_ended or time.monotonic() - self._last >= limit

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
            found = self._cluster.pod(self._pod["metadata"]["name"])
            if found is None or found["metadata"]["uid"] != self.uid or has_ended(found):
                return True
            self._pod = found
            if self._is_stopped or time.monotonic() >= until:
                return False
            time.sleep(_REPORT_SECONDS / 5)

    def _print_new(self) -> bool:
        """Print the new lines until the connection ends. Return whether the log is gone."""
        container, problem = log_container(self._pod)
        if problem not in ("", self._problem):
            say(f"pod {self._pod['metadata']['name']}: {problem}")
        self._problem = problem
        query = {"container": container, "follow": "true", "timestamps": "true"}
        if self._stamp:  # sinceTime has whole seconds
            query["sinceTime"] = f"{self._stamp[:19]}Z"
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        try:
            with open_log(self._cluster, self._pod, query, _SILENCE_SECONDS) as lines:
                self._last, self._is_open = time.monotonic(), True
                for line in self._new_lines(lines):
                    print_line(self._prefix + line)
                    self._last = time.monotonic()
        except ApiUnavailable:
            return False
        except ApiError as error:
            if error.status in (400, 404):  # the container has not started yet, or the pod is gone
                return error.status == 404
            with explained("get pods/log", self._cluster.namespace):
                raise
        return False

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
