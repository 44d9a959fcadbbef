"""Print or follow the logs of a job's workers over its attempts. Entry points: `show_log` and `follow`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from launcher.observe import PATIENCE_SECONDS, held_up
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.informer import Informer, ListWatch
from trainyard.kubectl import log_archive
from trainyard.kubectl.cluster import LABEL_INDEX, Cluster
from trainyard.kubectl.errors import DONE, JOB_FAILED, NOT_FOUND, REMOVED, PluginError
from trainyard.kubectl.log_stream import LogPosition, Stream, print_line, read_lines
from trainyard.kubectl.pod_state import beyond, failed_start, has_started, is_over
from trainyard.kubectl.progress import say
from trainyard.operator import names as n
from trainyard.operator.api.fields import parse_time

JsonObject = dict[str, Any]
_ASK_SECONDS: Final = 1.0
# After the end of a job or attempt, a log without a new line for this time is finished. Its worker may still have up to
# 45 s to end.
_DRAIN_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 5.0
# The limit for a log that goes on after a failed job.
_LONGEST_DRAIN_SECONDS: Final = 10.0


def worker(
    cluster: Cluster, job: JsonObject, node_rank: int, attempt: int | None = None
) -> JsonObject | None:
    """Return the newest pod of this node of the job's last attempt, or of this one."""
    return _newest(cluster.workers(job), attempt).get(node_rank)


def _newest(pods: Iterable[JsonObject], attempt: int | None = None) -> dict[int, JsonObject]:
    """Return the newest pod of each node, of any attempt or of this one."""
    found: dict[int, JsonObject] = {}
    for pod in sorted(pods, key=lambda pod: (_attempt(pod), pod["metadata"]["creationTimestamp"])):
        node = _node(pod)
        if node is not None and attempt in (None, _attempt(pod)):
            found[node] = pod
    return dict(sorted(found.items()))


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
    pods = _newest(cluster.workers(job), attempt)
    shown = {node: pod for node, pod in pods.items() if every or node == (node_rank or 0)}
    nodes = int(job.get("status", {}).get("nodes") or 0)
    if every and 0 < len(shown) < nodes:
        found = False
        with _report_errors():
            found = _show_archived(
                cluster, job, None, max(map(_attempt, shown.values())), tail, excluded=frozenset(shown)
            )
        if not found:
            missing = ", ".join(str(node) for node in range(nodes) if node not in shown)
            say(f"job {name}: the pods of these node ranks are gone, and their logs with them: {missing}")
    if not shown:
        try:
            if _show_archived(cluster, job, None if every else node_rank or 0, attempt, tail):
                return
        except PluginError as error:
            if not _show_log_tail(job, None if every else node_rank, attempt, tail):
                raise
            say(str(error))
            return
    if not shown and not every and node_rank is None:
        shown = _first_failed(job, pods)
    if not shown and not _show_log_tail(job, None if every else node_rank, attempt, tail):
        if not every:
            _in_range(job, node_rank or 0)
        raise PluginError(NOT_FOUND, _describe_missing(job, node_rank, attempt, every=every))
    for node, pod in shown.items():
        prefix = _prefix(node) if every else b""
        failed = failed_start(pod)
        if failed is not None:
            say(f"pod {pod['metadata']['name']}: {failed}")
        container = failed.container if failed else n.WORKER_CONTAINER
        query = {"container": container, **({"tailLines": str(tail)} if tail is not None else {})}
        try:
            for line in read_lines(cluster, pod, query):
                print_line(prefix + line)
        except PluginError:
            with _report_errors():
                if _show_archived(cluster, job, node, _attempt(pod), tail, prefixed=every):
                    continue
            if not _show_log_tail(job, node, _attempt(pod), tail, prefix):
                raise


@contextmanager
def _report_errors() -> Iterator[None]:
    """Print an error of the archived log and go on."""
    try:
        yield
    except PluginError as error:
        say(str(error))


def _show_archived(
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
    if not log_archive.logs_url(job) or (node_rank is not None and beyond(job, node_rank)):
        return False
    found = log_archive.read_logs(
        cluster, job, node_rank, log_archive.LAST if attempt is None else str(attempt)
    )
    logs = [each for each in found if each.node not in excluded]
    for log in logs:
        lines = log.text.split(b"\n")[:-1]
        prefix = _prefix(log.node) if (node_rank is None if prefixed is None else prefixed) else b""
        for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
            print_line(prefix + line)
    return bool(logs)


def _show_log_tail(
    job: JsonObject, node_rank: int | None, attempt: int | None, tail: int | None, prefix: bytes = b""
) -> bool:
    """Print the end of the log in the status if it is of this node and attempt. Return whether it is."""
    failure = job.get("status", {}).get("firstFailure") or {}
    lines = str(failure.get("logTail") or "").splitlines()
    if (
        not lines
        or node_rank not in (None, failure.get("nodeRank"))
        or attempt not in (None, failure["attempt"])
    ):
        return False
    say(
        f"pod {failure['pod']}: is gone, or its node is gone. These are its last lines, from the job's status "
        f"(node rank {failure.get('nodeRank', '-')}, attempt {failure['attempt']}, the first failure)"
    )
    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        print_line(prefix + line.encode(errors="replace"))
    return True


def _first_failed(job: JsonObject, pods: dict[int, JsonObject]) -> dict[int, JsonObject]:
    """Return the pod of the worker that failed first, if it is still there; say that its log takes node 0's place."""
    failed = job.get("status", {}).get("firstFailure") or {}
    shown = {node: pod for node, pod in pods.items() if pod["metadata"]["name"] == failed.get("pod")}
    for node in shown:
        say(
            f"job {job['metadata']['name']}: node 0 has no pod now. This is the log of node {node}, which failed first"
        )
    return shown


def _describe_missing(job: JsonObject, node_rank: int | None, attempt: int | None, *, every: bool) -> str:
    status = job.get("status", {})
    which = "worker" if every else f"worker node {node_rank or 0}"
    which += "" if attempt is None else f" of attempt {attempt}"
    phase, message = status.get("phase") or "not known yet", status.get("message")
    summary = f"job {job['metadata']['name']}: has no {which} now; its phase is {phase}"
    summary = f"{summary}: {message}" if message else summary
    ended = phase in n.FINAL_PHASES or (attempt or 0) < len(status.get("attempts") or ())
    if not ended or log_archive.logs_url(job):
        return summary
    return (
        f"{summary}. Its log was deleted with its pod: queue {job['spec']['jobQueue']} has no bucket for logs"
    )


def follow(
    cluster: Cluster, job: JsonObject, node_rank: int = 0, tail: int | None = None, *, every: bool = False
) -> int:
    """Print the log of a worker, or of all workers, until the job ends. Return the job's exit code.

    Print phases, and the cause of each restart, to standard error.
    """
    seen = LastSeen(cluster, job)
    with seen.watching():
        return _Following(cluster, seen, None if every else node_rank, tail).run()


class _Following:
    """Read the job once a second. Each log has its own thread, so a slow log does not delay the others."""

    def __init__(self, cluster: Cluster, seen: LastSeen, node_rank: int | None, tail: int | None) -> None:
        self._cluster, self._seen, self._node_rank, self._tail = cluster, seen, node_rank, tail
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
                job = self._seen.look()
                status = job.get("status", {})
                phase = status.get("phase") or n.PHASE_PENDING
                self._report(job["metadata"]["name"], phase, status)
                pods = _newest(self._cluster.workers(job))
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
        with _report_errors():
            found = _show_archived(self._cluster, job, self._node_rank, None, self._tail)
        if not found:
            _show_log_tail(job, self._node_rank or None, None, self._tail)

    def _report(self, name: str, phase: str, status: JsonObject) -> None:
        """Print the attempts that ended since the last call, with their causes, then the phase."""
        message = status.get("message")
        ended = [each for each in status.get("attempts") or [] if isinstance(each.get("attempt"), int)]
        for each in ended:
            # The message of the phase may be the same.
            if (
                self._last_attempt is None
                or each["attempt"] <= self._last_attempt
                or each.get("message") == message
            ):
                continue
            say(f"{name}: {n.PHASE_RESTARTING}: {each.get('message') or each.get('reason')}")
        self._last_attempt = max((each["attempt"] for each in ended), default=-1)
        now = ": ".join(str(part) for part in (phase, message or status.get("reason")) if part)
        # After `submit --follow`, the controller needs a moment to see the workspace.
        just_sent = time.monotonic() < self._began + _SETTLE_SECONDS
        if status.get("reason") == n.REASON_WAITING_FOR_WORKSPACE and just_sent:
            return
        if now != self._last_report:
            say(f"{name}: {now}")
            self._last_report = now

    def _report_missing_worker(
        self, job: JsonObject, phase: str, pod: JsonObject | None, node_rank: int
    ) -> None:
        if pod is None:
            _in_range(job, node_rank)
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
        """Start a stream for each running worker. Stop the earlier stream of its node once that is silent."""
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
                prefix=_prefix(node) if self._node_rank is None else b"",
            )
            self._shown.add(node)
            self._streams[node] = stream
            stream.start()

    def _is_drained(self, over: float, failed: bool) -> bool:
        """Return whether all logs have ended or are silent, `over` being the time of the job's end."""
        if failed and time.monotonic() - over >= _LONGEST_DRAIN_SECONDS:
            return True
        return all(each.is_silent(_DRAIN_SECONDS) for each in self._streams.values())

    def _drain(self) -> None:
        began = time.monotonic()
        while any(each.is_alive() for each in self._streams.values()) and not self._is_drained(began, True):
            self._wait()

    def _wait(self) -> None:
        """Wait until the next read of the job, or until the end of a stream."""
        ends = time.monotonic() + _ASK_SECONDS
        for each in self._streams.values():
            each.join(max(0.0, min(ends - time.monotonic(), _ASK_SECONDS / len(self._streams))))
        if not self._streams:
            time.sleep(max(0.0, ends - time.monotonic()))


def _in_range(job: JsonObject, rank: int) -> None:
    if wrong := beyond(job, rank):
        raise PluginError(NOT_FOUND, wrong)


def _missing(phase: str, pod: JsonObject | None, rank: int) -> str:
    """What is waited for while the others run: what the job waits for itself, its own line tells."""
    if phase != n.PHASE_RUNNING or (
        pod is not None and (has_started(pod) or is_over(pod) or failed_start(pod))
    ):
        return ""
    if pod is None:
        return f"waits for a pod of node {rank}"
    meta = pod["metadata"]
    created = parse_time(meta.get("creationTimestamp"))
    why = held_up(pod) if created is not None and time.time() - created >= PATIENCE_SECONDS else ""
    return f"waits for node {rank}: pod {meta['name']} {why or 'has not begun'}"


def exit_code(status: JsonObject) -> int:
    """The job's own: 0 where it succeeded, that of its worker where it is known."""
    if status.get("phase") == n.PHASE_SUCCEEDED:
        return DONE
    code = status.get("exitCode")
    return code if isinstance(code, int) and 0 < code < 256 else JOB_FAILED


def _prefix(node_rank: int) -> bytes:
    return f"[node {node_rank}] ".encode()


def _node(pod: JsonObject) -> int | None:
    labels = pod["metadata"]["labels"]
    node = str(labels.get(n.LABEL_NODE, labels.get(LABEL_INDEX)))
    return int(node) if node.isdecimal() else None


def _attempt(pod: JsonObject) -> int:
    return int(pod["metadata"]["labels"].get(n.LABEL_ATTEMPT, 0))


# From the answer that it is gone to the watch's word on that.
_HEAR_SECONDS: Final = 5.0


class LastSeen:
    """What the job said at its end.

    With `ttlSecondsAfterFinished: 0` it may be gone when the end of its log is seen, which the kubelet looks for every
    5 s; a watch has told of its end by then.
    """

    def __init__(self, cluster: Cluster, job: JsonObject) -> None:
        self._cluster = cluster
        self._name, self._uid = job["metadata"]["name"], job["metadata"]["uid"]
        self._over: JsonObject | None = None
        self._news = threading.Condition()
        source = ListWatch(
            path=cluster.path(n.JOB_PLURAL),
            selectors=(("fieldSelector", f"metadata.name={self._name}"),),
            convert=self._take,
        )
        self._watch = Informer(cluster.rest, source, self._changed)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The job is watched meanwhile."""
        self._watch.start()
        try:
            yield
        finally:
            self._watch.stop()

    def look(self) -> JsonObject:
        """The job as it is now, as it was at its end where it is gone. Raises PluginError where nobody saw that."""
        found = self._cluster.find_job(self._name)
        if found is None or found["metadata"]["uid"] != self._uid:
            found = self._at_its_end()
        if found is None:
            raise PluginError(REMOVED, f"job {self._name}: was removed; how it ended is not known")
        self._take(found)
        return found

    def _at_its_end(self) -> JsonObject | None:
        end = time.monotonic() + _HEAR_SECONDS
        with self._news:
            while self._over is None and self._is_there() and (left := end - time.monotonic()) > 0:
                self._news.wait(left)
            return self._over

    def _is_there(self) -> bool:
        """To those who watch, whom the end of it reaches a little later; False where it can't be watched."""
        try:
            return self._uid in self._watch.items()
        except (ApiError, ApiUnavailable):
            return False

    # -- in the watch's thread

    def _take(self, item: JsonObject) -> str:
        uid = str(item["metadata"]["uid"])
        if uid == self._uid and item.get("status", {}).get("phase") in n.FINAL_PHASES:
            self._over = item
        return uid

    def _changed(self) -> None:
        try:
            self._watch.items()
        except ApiError:  # it may be read and not watched
            self._watch.stop()
        except ApiUnavailable:
            return
        with self._news:
            self._news.notify_all()
