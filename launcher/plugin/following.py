"""The logs of a job's workers over its attempts, why they ended, and how the job ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from launcher.core.held import PATIENCE_SECONDS, held_up
from launcher.core.torchrun import names as n
from launcher.core.torchrun.record import moment
from launcher.plugin import archived
from launcher.plugin.begun import failed_start, has_begun, is_over
from launcher.plugin.cluster import LABEL_INDEX, Cluster
from launcher.plugin.exits import DONE, JOB_FAILED, NOT_FOUND, PluginError
from launcher.plugin.last_seen import LastSeen
from launcher.plugin.log_stream import Printed, Stream, print_line, read_lines
from launcher.plugin.ranks import beyond
from launcher.plugin.screen import say

JsonObject = dict[str, Any]
_ASK_SECONDS: Final = 1.0
# A log without a new line for so long is not waited for once its job, or its attempt, is over: the worker is ended, and
# may have 45 s for that.
_DRAIN_SECONDS: Final = 3.0
# Nor is one that goes on, where the job failed.
_LONGEST_DRAIN_SECONDS: Final = 10.0


def worker(
    cluster: Cluster, job: JsonObject, node_rank: int, attempt: int | None = None
) -> JsonObject | None:
    """Return the newest pod of this node of the job's last attempt, or of this one."""
    return _newest(cluster.workers(job), attempt).get(node_rank)


def _newest(pods: Iterable[JsonObject], attempt: int | None = None) -> dict[int, JsonObject]:
    """The newest pod of each node, of any attempt or of this one."""
    found: dict[int, JsonObject] = {}
    for pod in sorted(pods, key=lambda pod: (_attempt(pod), pod["metadata"]["creationTimestamp"])):
        node = _node(pod)
        if node is not None and attempt in (None, _attempt(pod)):
            found[node] = pod
    return dict(sorted(found.items()))


def show_log(
    cluster: Cluster, name: str, node_rank: int | None, attempt: int | None, tail: int | None, *, every: bool
) -> None:
    """Print what a worker has printed so far, or what each of them has. Raises PluginError where there is nothing.

    Of a worker whose pod or node is gone, its archived log is printed, or the last lines that the job's status keeps of
    the first failing one.
    """
    job = cluster.job(name)
    pods = _newest(cluster.workers(job), attempt)
    shown = {node: pod for node, pod in pods.items() if every or node == (node_rank or 0)}
    nodes = int(job.get("status", {}).get("nodes") or 0)
    if every and 0 < len(shown) < nodes:
        found = False
        with _said():
            found = _show_archived(
                cluster, job, None, max(map(_attempt, shown.values())), tail, besides=frozenset(shown)
            )
        if not found:
            missing = ", ".join(str(node) for node in range(nodes) if node not in shown)
            say(f"job {name}: the pods of these node ranks are gone, and their logs with them: {missing}")
    if not shown:
        try:
            if _show_archived(cluster, job, None if every else node_rank or 0, attempt, tail):
                return
        except PluginError as error:
            if not _show_kept(job, None if every else node_rank, attempt, tail):
                raise
            say(str(error))
            return
    if not shown and not every and node_rank is None:
        shown = _first_failed(job, pods)
    if not shown and not _show_kept(job, None if every else node_rank, attempt, tail):
        if not every:
            _in_range(job, node_rank or 0)
        raise PluginError(NOT_FOUND, _nothing(job, node_rank, attempt, every=every))
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
            with _said():
                if _show_archived(cluster, job, node, _attempt(pod), tail, prefixed=every):
                    continue
            if not _show_kept(job, node, _attempt(pod), tail, prefix):
                raise


@contextmanager
def _said() -> Iterator[None]:
    """Tell what is wrong with the archived log; there is something else to show."""
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
    besides: frozenset[int] = frozenset(),
) -> bool:
    """Print what the queue's bucket has of this worker, or of all but some; whether there was anything.

    Of the last attempt that has a log, where none is named. Raises PluginError where it can't be read.
    """
    if not archived.place(job) or (node_rank is not None and beyond(job, node_rank)):
        return False
    found = archived.read(cluster, job, node_rank, archived.LAST if attempt is None else str(attempt))
    logs = [each for each in found if each.node not in besides]
    for log in logs:
        lines = log.text.split(b"\n")[:-1]
        prefix = _prefix(log.node) if (node_rank is None if prefixed is None else prefixed) else b""
        for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
            print_line(prefix + line)
    return bool(logs)


def _show_kept(
    job: JsonObject, node_rank: int | None, attempt: int | None, tail: int | None, prefix: bytes = b""
) -> bool:
    """Print the last lines that the status keeps, if they are of this node and attempt; whether they were."""
    kept = job.get("status", {}).get("firstFailure") or {}
    lines = str(kept.get("logTail") or "").splitlines()
    if not lines or node_rank not in (None, kept.get("nodeRank")) or attempt not in (None, kept["attempt"]):
        return False
    say(
        f"pod {kept['pod']}: is gone, or its node is; these are its last lines, which the job's status keeps "
        f"(node rank {kept.get('nodeRank', '-')}, attempt {kept['attempt']}, which failed first)"
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


def _nothing(job: JsonObject, node_rank: int | None, attempt: int | None, *, every: bool) -> str:
    status = job.get("status", {})
    which = "worker" if every else f"worker node {node_rank or 0}"
    which += "" if attempt is None else f" of attempt {attempt}"
    phase, message = status.get("phase") or "not known yet", status.get("message")
    said = f"job {job['metadata']['name']}: has no {which} now; its phase is {phase}"
    return f"{said}: {message}" if message else said


def follow(
    cluster: Cluster, job: JsonObject, node_rank: int = 0, tail: int | None = None, *, every: bool = False
) -> int:
    """Print what a worker prints, or each of them, in every attempt until the job ends; return its exit code.

    What happens meanwhile, with the cause of each restart, is told on standard error.
    """
    seen = LastSeen(cluster, job)
    with seen.watching():
        return _Following(cluster, seen, None if every else node_rank, tail).run()


class _Following:
    """Reads the job once a second; each log has a thread, so that one that ends late holds up nothing."""

    def __init__(self, cluster: Cluster, seen: LastSeen, node_rank: int | None, tail: int | None) -> None:
        self._cluster, self._seen, self._node_rank, self._tail = cluster, seen, node_rank, tail
        self._said = self._missed = ""
        self._starts_told: set[str] = set()
        self._last_told: int | None = None
        self._streams: dict[int, Stream] = {}
        self._printed: dict[str, Printed] = {}
        self._done: set[str] = set()
        # Nodes of which a log was begun: of their next attempts all is shown.
        self._shown: set[int] = set()

    def run(self) -> int:
        """Follow until the job ends."""
        over: float | None = None
        try:
            while True:
                job = self._seen.look()
                status = job.get("status", {})
                phase = status.get("phase") or n.PHASE_PENDING
                self._tell(job["metadata"]["name"], phase, status)
                pods = _newest(self._cluster.workers(job))
                if self._node_rank is not None:
                    self._tell_missed(job, phase, pods.get(self._node_rank), self._node_rank)
                    pods = {node: pod for node, pod in pods.items() if node == self._node_rank}
                self._take_ended()
                self._start_streams(pods)
                if phase in n.FINAL_PHASES:
                    over = over or time.monotonic()
                    if self._is_drained(over, phase == n.PHASE_FAILED):
                        if not (pods or self._done or self._streams):
                            with _said():
                                _show_archived(self._cluster, job, self._node_rank, None, self._tail)
                        return exit_code(status)
                self._wait()
        except PluginError:
            self._drain()
            raise
        finally:
            for each in self._streams.values():
                each.stop()

    def _tell(self, name: str, phase: str, status: JsonObject) -> None:
        """The attempts that ended since the last look, each with its cause, then the phase."""
        message = status.get("message")
        ended = [each for each in status.get("attempts") or [] if isinstance(each.get("attempt"), int)]
        for each in ended:
            # What the phase says itself is told once.
            if (
                self._last_told is None
                or each["attempt"] <= self._last_told
                or each.get("message") == message
            ):
                continue
            say(f"{name}: {n.PHASE_RESTARTING}: {each.get('message') or each.get('reason')}")
        self._last_told = max((each["attempt"] for each in ended), default=-1)
        now = ": ".join(str(part) for part in (phase, message or status.get("reason")) if part)
        if now != self._said:
            say(f"{name}: {now}")
            self._said = now

    def _tell_missed(self, job: JsonObject, phase: str, pod: JsonObject | None, node_rank: int) -> None:
        if pod is None:
            _in_range(job, node_rank)
        why = _missing(phase, pod, node_rank)
        if why and why != self._missed:
            say(f"{job['metadata']['name']}: {why}")
            self._missed = why

    def _take_ended(self) -> None:
        """Forget the streams that are over. Raises what went wrong in them."""
        for node, stream in list(self._streams.items()):
            if stream.is_alive():
                continue
            del self._streams[node]
            if stream.error is not None:
                raise stream.error
            if stream.ended:
                self._done.add(stream.uid)

    def _start_streams(self, pods: dict[int, JsonObject]) -> None:
        """Each worker that has begun gets one; the former one of its node is given up once it is silent."""
        for node, pod in pods.items():
            uid, running = pod["metadata"]["uid"], self._streams.get(node)
            if uid in self._done or (running is not None and running.uid == uid):
                continue
            failed = failed_start(pod)
            why = f"pod {pod['metadata']['name']}: {failed}" if failed else ""
            if why and why not in self._starts_told:
                say(why)
                self._starts_told.add(why)
            if failed is None and not has_begun(pod):
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
                self._printed.setdefault(uid, Printed()),
                tail=None if node in self._shown else self._tail,
                prefix=_prefix(node) if self._node_rank is None else b"",
            )
            self._shown.add(node)
            self._streams[node] = stream
            stream.start()

    def _is_drained(self, over: float, failed: bool) -> bool:
        """Whether the logs have ended, or say nothing more, so long after the job's end."""
        if failed and time.monotonic() - over >= _LONGEST_DRAIN_SECONDS:
            return True
        return all(each.is_silent(_DRAIN_SECONDS) for each in self._streams.values())

    def _drain(self) -> None:
        began = time.monotonic()
        while any(each.is_alive() for each in self._streams.values()) and not self._is_drained(began, True):
            self._wait()

    def _wait(self) -> None:
        """Until the next look; not longer than the streams that there are, if one of them is about to end."""
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
        pod is not None and (has_begun(pod) or is_over(pod) or failed_start(pod))
    ):
        return ""
    if pod is None:
        return f"waits for a pod of node {rank}"
    meta = pod["metadata"]
    created = moment(meta.get("creationTimestamp"))
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
