"""`logs`, and `submit --follow`: print a job's logs, or follow them over its attempts until it ends (`follow`)."""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.logs import (
    check_node_rank,
    failed_start,
    has_ended,
    has_started,
    is_over,
    line_prefix,
    newest_pods,
    print_line,
    report_errors,
    show_archived,
    show_log,
    show_log_tail,
    split,
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
_REPORT_SECONDS: Final = 1.0
# The timestamp that the kubelet adds before each line of a container (RFC 3339).
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_NO_LOG_STATUSES: Final = frozenset({400, 404})
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
    if options.follow:
        if options.attempt is not None or options.previous:
            flag = "--previous" if options.previous else "--attempt"
            raise PluginError(
                USAGE, f"{flag}: excludes --follow, which shows each attempt from the last one on"
            )
        job = cluster.job(options.name)
        return follow(cluster, job, options.node_rank or 0, options.tail, every=options.all)
    attempt = options.attempt
    if options.previous:
        attempt = int(cluster.job(options.name).get("status", {}).get("attempt") or 0) - 1
        if attempt < 0:
            raise PluginError(USAGE, f"--previous: job {options.name} has had one attempt. Leave it out.")
    show_log(cluster, options.name, options.node_rank, attempt, options.tail, every=options.all)
    return DONE


def follow(
    cluster: Cluster, job: JsonObject, node_rank: int = 0, tail: int | None = None, *, every: bool = False
) -> int:
    """Print the log of a worker, or of all workers, until the job ends. Return the job's exit code.

    Print phases, and the cause of each restart, to standard error.
    """
    reader = JobReader(cluster, job)
    with reader.watching():
        return _Follower(cluster, reader, None if every else node_rank, tail).run()


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
        found = self._cluster.find_job(self._name)
        if found is None or found["metadata"]["uid"] != self._uid:
            found = self._wait_for_end()
        if found is None:
            raise PluginError(REMOVED, f"job {self._name}: was removed; how it ended is not known")
        self._record(found)
        return found

    def _wait_for_end(self) -> JsonObject | None:
        until = time.monotonic() + _WATCH_DELAY_SECONDS
        with self._changes:
            while self._ended is None and self._is_watched() and (left := until - time.monotonic()) > 0:
                self._changes.wait(left)
            return self._ended

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

    def __init__(self, cluster: Cluster, reader: JobReader, node_rank: int | None, tail: int | None) -> None:
        self._cluster, self._reader, self._node_rank, self._tail = cluster, reader, node_rank, tail
        self._last_report = self._last_missing = ""
        self._reported_starts: set[str] = set()
        self._last_attempt: int | None = None
        self._began = time.monotonic()
        self._streams: dict[int, Stream] = {}
        self._positions: dict[str, LogPosition] = {}
        self._done: set[str] = set()
        # Nodes with a printed log. Of their next attempts, the whole log is printed.
        self._shown: set[int] = set()

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
                if self._node_rank is not None:
                    self._report_missing_worker(job, phase, pods.get(self._node_rank), self._node_rank)
                    pods = {node: pod for node, pod in pods.items() if node == self._node_rank}
                self._remove_ended_streams()
                self._start_streams(pods)
                if phase in n.FINAL_PHASES:
                    over = over or time.monotonic()
                    if self._is_drained(over, phase == n.PHASE_FAILED):
                        if not (pods or self._done or self._streams):
                            self._show_ended(job)
                        return exit_code(status)
                self._wait()
        except PluginError:
            self._drain()
            raise
        finally:
            for each in self._streams.values():
                each.stop()

    def _show_ended(self, job: JsonObject) -> None:
        """Print the archived log, or the last lines of the first failed worker, of a job whose pods are gone."""
        found = False
        with report_errors():
            found = show_archived(self._cluster, job, self._node_rank, None, self._tail)
        if not found:
            show_log_tail(job, self._node_rank or None, None, self._tail)

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

    def _report_missing_worker(
        self, job: JsonObject, phase: str, pod: JsonObject | None, node_rank: int
    ) -> None:
        if pod is None:
            check_node_rank(job, node_rank)
        why = _missing(phase, pod, node_rank)
        if why and why != self._last_missing:
            say(f"{job['metadata']['name']}: {why}")
            self._last_missing = why

    def _remove_ended_streams(self) -> None:
        """Remove streams that ended, and raise their errors."""
        for node, stream in list(self._streams.items()):
            if stream.is_alive():
                continue
            del self._streams[node]
            if stream.error is not None:
                raise stream.error
            if stream.ended:
                self._done.add(stream.uid)

    def _start_streams(self, pods: dict[int, JsonObject]) -> None:
        """Start a stream for each running worker. Stop the earlier stream of its node when that is silent."""
        for node, pod in pods.items():
            uid, running = pod["metadata"]["uid"], self._streams.get(node)
            if uid in self._done or (running is not None and running.uid == uid):
                continue
            failed = failed_start(pod)
            why = f"pod {pod['metadata']['name']}: {failed}" if failed else ""
            if why and why not in self._reported_starts:
                say(why)
                self._reported_starts.add(why)
            if failed is None and not has_started(pod):
                continue
            if running is not None:
                if not running.is_silent(_DRAIN_SECONDS):
                    continue
                running.stop()
                self._done.add(running.uid)
            stream = Stream(
                self._cluster,
                pod,
                failed.container if failed else n.WORKER_CONTAINER,
                self._positions.setdefault(uid, LogPosition()),
                tail=None if node in self._shown else self._tail,
                prefix=line_prefix(node) if self._node_rank is None else b"",
            )
            self._shown.add(node)
            self._streams[node] = stream
            stream.start()

    def _is_drained(self, over: float, failed: bool) -> bool:
        """Return whether all logs have ended or are silent, `over` being the time of the job's end."""
        if failed and time.monotonic() - over >= _MAX_DRAIN_SECONDS:
            return True
        return all(each.is_silent(_DRAIN_SECONDS) for each in self._streams.values())

    def _drain(self) -> None:
        began = time.monotonic()
        while any(each.is_alive() for each in self._streams.values()) and not self._is_drained(began, True):
            self._wait()

    def _wait(self) -> None:
        """Wait until the next read of the job, or until the end of a stream."""
        until = time.monotonic() + _POLL_SECONDS
        for each in self._streams.values():
            each.join(max(0.0, min(until - time.monotonic(), _POLL_SECONDS / len(self._streams))))
        if not self._streams:
            time.sleep(max(0.0, until - time.monotonic()))


def _missing(phase: str, pod: JsonObject | None, node_rank: int) -> str:
    """Return what the follower waits for while the job runs. The job's own report has what a pending job waits for."""
    if phase != n.PHASE_RUNNING or (
        pod is not None and (has_started(pod) or is_over(pod) or failed_start(pod))
    ):
        return ""
    if pod is None:
        return f"waits for a pod of node {node_rank}"
    meta = pod["metadata"]
    created = parse_time(meta.get("creationTimestamp"))
    why = pending_reason(pod) if created is not None and time.time() - created >= PATIENCE_SECONDS else ""
    return f"waits for node {node_rank}: pod {meta['name']} {why or 'has not started'}"


def exit_code(status: JsonObject) -> int:
    """Return the exit code of the job's failed worker, 0 if the job succeeded, 1 if the code is unknown."""
    if status.get("phase") == n.PHASE_SUCCEEDED:
        return DONE
    code = status.get("exitCode")
    return code if isinstance(code, int) and 0 < code < 256 else JOB_FAILED


class LogPosition:
    """The printed part of a pod's log: the last timestamp, and the number of printed lines with this timestamp."""

    def __init__(self) -> None:
        self.last = ""
        self._lines_at_last = 0

    def resume(self) -> Callable[[str], bool]:
        """Return a function for a log that is read again from `last` on.

        It takes the timestamp of each line in order, and returns whether the line is new.
        """
        before, left = _pad_fraction(self.last), self._lines_at_last

        def is_new(when: str) -> bool:
            nonlocal left
            if _pad_fraction(when) < before or (_pad_fraction(when) == before and left > 0):
                left -= _pad_fraction(when) == before
                return False
            self._lines_at_last = self._lines_at_last + 1 if when == self.last else 1
            self.last = when
            return True

        return is_new


class Stream(threading.Thread):
    """Print the new lines of a container's log, until the log ends or the connection breaks.

    When the thread has ended, `ended` says whether the pod's log is complete, and `error` is the exception, if any.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: JsonObject,
        container: str,
        position: LogPosition,
        *,
        tail: int | None,
        prefix: bytes,
    ) -> None:
        super().__init__(name=f"log of {pod['metadata']['name']}", daemon=True)
        self.uid: str = pod["metadata"]["uid"]
        self.position = position
        self.ended = False
        self.error: Exception | None = None
        self._cluster, self._name, self._container = cluster, pod["metadata"]["name"], container
        self._tail, self._prefix = tail, prefix
        self._stopped = False
        self._is_open = False
        self._last = time.monotonic()

    def stop(self) -> None:
        """Stop printing."""
        self._stopped = True

    def is_silent(self, seconds: float) -> bool:
        """Return whether nothing was printed for this time, or the API server does not answer."""
        limit = seconds if self._is_open else max(seconds, _ANSWER_SECONDS)
        return time.monotonic() - self._last >= limit

    def run(self) -> None:
        try:
            self.ended = self._print_all()
        except Exception as error:  # the main thread raises it
            self.error = error

    def _print_all(self) -> bool:
        query = {"container": self._container, "follow": "true", "timestamps": "true"}
        if self.position.last:
            # sinceTime has whole seconds. `is_new` skips the lines that were printed before.
            query["sinceTime"] = self.position.last[:19] + "Z"
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        cluster = self._cluster
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{self._name}/log"
        is_new = self.position.resume()
        try:
            with cluster.client.open(path, query, read_timeout=_SILENCE_SECONDS) as answer:
                self._last, self._is_open = time.monotonic(), True
                for line in split(answer.chunks()):
                    stamp, _, text = line.partition(b" ")
                    # The kubelet's own messages, such as that it can't follow the log, have no timestamp.
                    own = not _STAMP.fullmatch(stamp)
                    if self._stopped:
                        return False
                    if own or is_new(stamp.decode()):
                        print_line(self._prefix + (line if own else text))
                        self._last = time.monotonic()
        except ApiUnavailable:
            return False
        except ApiError as error:
            if error.status in _NO_LOG_STATUSES:  # the pod is gone, or its container has not started yet
                return error.status == 404
            with explained("get pods/log", cluster.namespace):
                raise
        return self._has_ended()

    def _has_ended(self) -> bool:
        """Return whether the pod has ended, too. The kubelet closes the stream shortly before it reports the end."""
        until = time.monotonic() + _REPORT_SECONDS
        while True:
            now = self._cluster.pod(self._name)
            if now is None or now["metadata"]["uid"] != self.uid or has_ended(now):
                return True
            if self._stopped or time.monotonic() >= until:
                return False
            time.sleep(_REPORT_SECONDS / 5)


def _pad_fraction(when: str) -> str:
    """Return an RFC 3339 timestamp with nine fractional digits, so that timestamps compare as strings."""
    whole, _, part = when.rstrip("Z").partition(".")
    return f"{whole}.{part:0<9}"
