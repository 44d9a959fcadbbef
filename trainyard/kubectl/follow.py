"""`logs --follow` and `submit --follow`: print a job's logs over its attempts until it ends. Entry point: `follow`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from launcher.observe import PATIENCE_SECONDS, pending_reason
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.errors import DONE, JOB_FAILED, REMOVED, PluginError
from trainyard.kubectl.log_archive import line_prefix, report_errors, show_archived, show_log_tail
from trainyard.kubectl.log_stream import LogPosition, Stream
from trainyard.kubectl.pod_state import check_node_rank, failed_start, has_started, is_over, newest_pods
from trainyard.kubectl.progress import say
from trainyard.operator import names as n
from trainyard.operator.api.fields import parse_time

JsonObject = dict[str, Any]
_POLL_SECONDS: Final = 1.0
# After the end of a job or attempt, a log without a new line for this time is finished. Its worker may still have up to
# 45 s to end.
_DRAIN_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 5.0
# The limit for a log that goes on after a failed job.
_MAX_DRAIN_SECONDS: Final = 10.0
# The delay of a watch after the API server's answer that the job is gone.
_WATCH_DELAY_SECONDS: Final = 5.0


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
