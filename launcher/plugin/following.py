"""The log of a job's workers over its attempts, and how it ended."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from launcher.core.held import PATIENCE_SECONDS, held_up
from launcher.core.torchrun import names as n
from launcher.core.torchrun.record import moment
from launcher.kube.rest import ApiError, ApiUnavailable
from launcher.plugin.begun import failed_start, has_begun, has_ended, is_over
from launcher.plugin.cluster import LABEL_INDEX, Cluster, explained
from launcher.plugin.exits import DONE, JOB_FAILED, NOT_FOUND, UNAVAILABLE, PluginError
from launcher.plugin.last_seen import LastSeen
from launcher.plugin.ranks import beyond
from launcher.plugin.screen import say

JsonObject = dict[str, Any]
_ASK_SECONDS: Final = 1.0
# A training may be silent for long; a connection that is gone is noticed by the keep-alive of `Rest`.
_SILENCE_SECONDS: Final = 3600.0
_NO_LOG: Final = 400
# What the kubelet puts before a line of a container (RFC 3339).
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_NOT_YET: Final = frozenset({_NO_LOG, 404})


def worker(cluster: Cluster, job: JsonObject, rank: int, attempt: int | None = None) -> JsonObject | None:
    """The newest pod of this node of the job's last attempt, or of this one."""
    found = [pod for pod in cluster.workers(job) if _node(pod) == str(rank)]
    if attempt is not None:
        found = [pod for pod in found if _attempt(pod) == attempt]
    return max(found, key=lambda pod: (_attempt(pod), pod["metadata"]["creationTimestamp"]), default=None)


def show_log(cluster: Cluster, name: str, rank: int, attempt: int | None, tail: int | None) -> None:
    """What this worker has printed so far. Raises PluginError where there is none."""
    job = cluster.job(name)
    pod = worker(cluster, job, rank, attempt)
    if pod is None:
        _in_range(job, rank)
        status = job.get("status", {})
        which = f"node {rank}" if attempt is None else f"node {rank} of attempt {attempt}"
        raise PluginError(
            NOT_FOUND,
            f"job {name}: has no worker {which} now; its phase is {status.get('phase') or 'not known yet'}"
            + (f": {status['message']}" if status.get("message") else ""),
        )
    failed = failed_start(pod)
    if failed is not None:
        say(f"pod {pod['metadata']['name']}: {failed}")
    container = failed.container if failed else n.WORKER_CONTAINER
    query = {"container": container, **({"tailLines": str(tail)} if tail is not None else {})}
    for line in _lines(cluster, pod, query):
        _print(line)


def follow(cluster: Cluster, job: JsonObject, rank: int = 0, tail: int | None = None) -> int:
    """Prints what this worker prints, of each attempt, until the job ends; the job's exit code.

    What else happens is told on standard error.
    """
    seen = LastSeen(cluster, job)
    with seen.watching():
        return _followed(cluster, seen, rank, tail)


def _followed(cluster: Cluster, seen: LastSeen, rank: int, tail: int | None) -> int:
    said, done, printed, told, missed = "", "", _Printed(), "", ""
    restarts: int | None = None
    while True:
        job = seen.look()
        status = job.get("status", {})
        phase = status.get("phase") or n.PHASE_PENDING
        now = ": ".join(str(part) for part in (phase, status.get("message") or status.get("reason")) if part)
        if now != said:
            count = int(status.get("restarts") or 0)
            if restarts is not None and count > restarts and phase != n.PHASE_RESTARTING:
                # It was over before anybody looked: the first one has no pause.
                why = (status.get("lastRestart") or {}).get("message") or f"restart {count}"
                say(f"{job['metadata']['name']}: {n.PHASE_RESTARTING}: {why}")
            restarts = count
            say(f"{job['metadata']['name']}: {now}")
            said = now
        pod = worker(cluster, job, rank)
        if pod is None:
            _in_range(job, rank)
        if (why := _missed(phase, pod, rank)) and why != missed:
            say(f"{job['metadata']['name']}: {why}")
            missed = why
        if pod is not None and pod["metadata"]["uid"] != done:
            failed = failed_start(pod)
            why = f"pod {pod['metadata']['name']}: {failed}" if failed else told
            if why != told:
                say(why)
                told = why
            if failed is not None or has_begun(pod):
                container = failed.container if failed else n.WORKER_CONTAINER
                ended = _stream(cluster, pod, container, printed, tail)
                tail = None
                if ended:
                    done, printed = pod["metadata"]["uid"], _Printed()
                    continue
        if phase in n.FINAL_PHASES:
            return exit_code(status)
        time.sleep(_ASK_SECONDS)


def _in_range(job: JsonObject, rank: int) -> None:
    if wrong := beyond(job, rank):
        raise PluginError(NOT_FOUND, wrong)


def _missed(phase: str, pod: JsonObject | None, rank: int) -> str:
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


class _Printed:
    """How far a pod's log was printed: a time, and how many lines of exactly this time, as some come in one piece."""

    def __init__(self) -> None:
        self.last = ""
        self._of_last = 0

    def again(self) -> Callable[[str], bool]:
        """For a log that is read once more from `last` on: whether the next line, of this time, is a new one."""
        before, left = _padded(self.last), self._of_last

        def is_new(when: str) -> bool:
            nonlocal left
            if _padded(when) < before or (_padded(when) == before and left > 0):
                left -= _padded(when) == before
                return False
            self._of_last = self._of_last + 1 if when == self.last else 1
            self.last = when
            return True

        return is_new


def _stream(cluster: Cluster, pod: JsonObject, container: str, printed: _Printed, tail: int | None) -> bool:
    """Prints what was not printed yet of the container's log; whether it is all of the pod's."""
    query = {"container": container, "follow": "true", "timestamps": "true"}
    if printed.last:
        query["sinceTime"] = (
            printed.last[:19] + "Z"
        )  # whole seconds; what was printed of them is left out below
    elif tail is not None:
        query["tailLines"] = str(tail)
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/log"
    is_new = printed.again()
    try:
        with cluster.rest.open(path, query, silence=_SILENCE_SECONDS) as answer:
            for line in _split(answer.chunks()):
                stamp, _, text = line.partition(b" ")
                # The kubelet's own words, such as that it can't follow any more, have none.
                if not _STAMP.fullmatch(stamp):
                    _print(line)
                elif is_new(stamp.decode()):
                    _print(text)
    except ApiUnavailable:
        return False
    except ApiError as error:
        if error.status in _NOT_YET:  # gone, or its container has just not begun
            return error.status == 404
        with explained("get pods/log", cluster.namespace):
            raise
    now = cluster.pod(name)
    return now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or has_ended(now)


def _padded(when: str) -> str:
    """A time as RFC 3339 with up to nine digits, the zeros at whose end are left out, so that it can be compared."""
    whole, _, part = when.rstrip("Z").partition(".")
    return f"{whole}.{part:0<9}"


def _lines(cluster: Cluster, pod: JsonObject, query: dict[str, str]) -> Iterator[bytes]:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}/log"
    with (
        explained("get pods/log", cluster.namespace),
        _begun(pod),
        cluster.rest.open(path, query) as answer,
    ):
        yield from _split(answer.chunks())


@contextmanager
def _begun(pod: JsonObject) -> Iterator[None]:
    """What the API server says of a container that has no log as PluginError."""
    try:
        yield
    except ApiError as error:
        if error.status != _NO_LOG:
            raise
        name, status = pod["metadata"]["name"], pod.get("status", {})
        said = f"pod {name}: has no log yet: {error.message}; logs -f waits for it"
        if is_over(pod):
            why = status.get("message") or status.get("reason") or error.message
            said = f"pod {name}: is over, and its worker has no log: {why}"
        raise PluginError(UNAVAILABLE, said) from None


def _split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []  # of a line that may be long
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for each in others:
            yield b"".join(rest)
            rest = [each]
    if last := b"".join(rest):
        yield last


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _node(pod: JsonObject) -> str | None:
    labels = pod["metadata"]["labels"]
    node: str | None = labels.get(n.LABEL_NODE, labels.get(LABEL_INDEX))
    return node


def _attempt(pod: JsonObject) -> int:
    return int(pod["metadata"]["labels"].get(n.LABEL_ATTEMPT, 0))
