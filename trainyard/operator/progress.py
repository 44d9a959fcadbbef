"""Read the progress of a job from the Prometheus metrics of its first worker.

It reads pods with the annotation `prometheus.io/scrape: "true"`, at `prometheus.io/port` and `prometheus.io/path`, as
the Prometheus community's charts do. The defaults are those of the trainer.

The annotations and the answer of a pod are not trusted. So `read_progress` needs at most seconds and little memory, and
raises no error.
"""

from __future__ import annotations

import http.client
import ipaddress
import logging
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, cast

from prometheus_client.parser import text_string_to_metric_families

from launcher.manifests import stamp
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.context import ReconcileContext
from trainyard.operator.observe import annotations_of
from trainyard.operator.plan import PROGRESS_SECONDS

_TIMEOUT_SECONDS = 2.0
_MAX_BYTES: Final = 1 << 20
# The limit of lines with metrics for the status; a trainer has one line per metric.
_MAX_LINES: Final = 100
_LONGEST_LINE: Final = 1000
# Whole numbers of a status have 64 bits, and times end with the year 9999. No job comes near either.
_MAX_VALUE: Final = 1e11
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_PATH: Final = re.compile(r"/[!-~]{0,1000}", re.ASCII)
# The field of `progress` with the reason why the metrics can't be read.
UNREADABLE: Final = "unreadable"
_SHOWN: Final = 200
# A worker that does not answer blocks one thread for four seconds in each minute.
_THREADS: Final = 8
# The interval after an answer that can't be read.
_UNREADABLE_SECONDS: Final = 60.0
# Answers come in milliseconds. The next reconcile gets a slower one.
_WAIT_SECONDS = 0.25

log = logging.getLogger(__name__)


class Unreadable(ValueError):
    """The progress of a pod can't be read; the message is the reason."""


def find_first_worker(ctx: ReconcileContext) -> JsonObject | None:
    """Return the running pod of rank 0 if it exposes metrics."""
    if ctx.status.phase != n.PHASE_RUNNING:
        return None
    found = (pod for pod in ctx.workers if pod.node_rank == 0 and pod.phase == "Running")
    scraped = (pod.item for pod in found if annotations_of(pod.item).get(n.ANNOTATION_SCRAPE) == "true")
    return next(scraped, None)


def read_progress(pod: JsonObject) -> JsonObject | None:
    """Return the progress of the pod in the form of the job's status.

    Return None if there is no answer or no progress yet, and only `unreadable` if the answer can't be read.
    """
    try:
        address = _address(pod)
        return None if address is None else parse_metrics(_fetch(*address))
    except OSError as error:  # the trainer may not have started yet
        log.debug("pod %s does not answer: %s", pod["metadata"]["name"], error)
        return None
    except Exception as error:
        why = str(error) if isinstance(error, Unreadable) else f"its metrics are malformed: {error}"
        return {UNREADABLE: " ".join(why.split())[:_SHOWN]}


def _address(pod: JsonObject) -> tuple[str, int, str] | None:
    """Return host, port and path of the metrics, which must belong to the pod."""
    annotations = pod["metadata"].get("annotations") or {}
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    if not status.get("podIP"):
        return None
    host = ipaddress.ip_address(str(status["podIP"]))
    if host.is_link_local or host.is_multicast or host.is_unspecified:
        raise Unreadable(f"podIP: {host} is not an address of a pod")
    port = annotations.get("prometheus.io/port") or str(names.TRAINER_METRICS_PORT)
    path = annotations.get("prometheus.io/path") or names.METRICS_PATH
    if not (_PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise Unreadable(f"annotation prometheus.io/port: {port[:20]!r} must be a port from 1 to 65535")
    if not _PATH.fullmatch(path):
        raise Unreadable(f"annotation prometheus.io/path: {path[:20]!r} must be a path such as /metrics")
    # With the host's network, other ports belong to other programs of the node.
    if spec.get("hostNetwork") and (int(port), path) != (names.TRAINER_METRICS_PORT, names.METRICS_PATH):
        raise Unreadable(
            f"annotation prometheus.io/port: {port}{path} is on the node's network; it must be"
            f" {names.TRAINER_METRICS_PORT}{names.METRICS_PATH} there"
        )
    return str(host), int(port), path


class _Received(BytesIO):
    """A received answer, as a socket for HTTPResponse."""

    def makefile(self, _mode: str) -> BytesIO:
        return self


def _fetch(host: str, port: int, path: str) -> str:
    """Return the body of an answer. All of it must arrive in time, even if its bytes arrive one by one."""
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {f'[{host}]' if ':' in host else host}:{port}\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    )
    data, deadline = bytearray(), time.monotonic() + _TIMEOUT_SECONDS
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        try:
            connection.sendall(request.encode())
            while piece := connection.recv(_MAX_BYTES):
                data += piece
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                if len(data) > _MAX_BYTES:
                    raise Unreadable(f"its metrics are larger than {_MAX_BYTES} bytes")
                connection.settimeout(left)
        except TimeoutError as error:
            raise Unreadable(f"its metrics take longer than {_TIMEOUT_SECONDS:g} s") from error
    answer = http.client.HTTPResponse(cast(socket.socket, _Received(data)))
    answer.begin()
    if answer.status != http.client.OK:
        raise Unreadable(f"its metrics answer with status {answer.status}")
    return answer.read().decode()


def parse_metrics(text: str) -> JsonObject | None:
    """Return `progress` of the status from the text format of Prometheus; None without a step.

    Raises ValueError or an error of the parser for an invalid text.
    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    shown = tuple(names.TRAINER_PROGRESS.values())
    lines = [line for line in text.split("\n") if line.startswith(shown)]
    if len(lines) > _MAX_LINES or any(len(line) > _LONGEST_LINE for line in lines):
        raise Unreadable(
            f"its metrics have more than {_MAX_LINES} lines about its progress, or one longer than {_LONGEST_LINE}"
        )
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families("\n".join([*lines, ""]))
        for sample in family.samples
        if sample.name in shown and abs(sample.value) < _MAX_VALUE
    }
    found = {key: values[name] for key, name in names.TRAINER_PROGRESS.items() if name in values}
    found = {key: value for key, value in found.items() if value >= 0 or key == "loss"}
    if "step" not in found:
        return None
    progress: dict[str, Any] = {"step": int(found["step"])}
    # Rounded to six digits, because kubectl shows all digits.
    if "loss" in found:
        progress["loss"] = float(f"{found['loss']:.6g}")
    for key, unit in (("samplesPerSecond", "samples/s"), ("tokensPerSecond", "tokens/s")):
        if key in found:
            progress |= {"throughput": float(f"{found[key]:.6g}"), "unit": unit}
    if "checkpointStep" in found:
        progress["checkpointStep"] = int(found["checkpointStep"])
    if "checkpointTime" in found:
        progress["checkpointTime"] = stamp(found["checkpointTime"])
    return progress


Ask = Callable[[JsonObject], JsonObject | None]


@dataclass
class _Poll:
    """The last read of a job's worker, and when the next one is due. The answer is None once it was returned."""

    uid: str = ""
    due: float = float("-inf")
    answer: Future[JsonObject | None] | None = None


class ProgressPoller:
    """Read the progress of jobs, from any thread, but each job from one. `now` is in seconds since the epoch."""

    def __init__(self, now: Callable[[], float], ask: Ask = read_progress) -> None:
        self._now = now
        self._ask = ask
        self._polls: dict[str, _Poll] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="progress")

    def poll(self, job: str, worker: JsonObject) -> JsonObject | None:
        """Return the new progress of this worker, None for none. It is read at most every PROGRESS_SECONDS."""
        uid, poll = str(worker["metadata"].get("uid")), self._polls.setdefault(job, _Poll())
        if poll.answer is None or poll.uid != uid:
            if self._now() < poll.due:
                return None
            poll.uid, poll.due = uid, self._now() + PROGRESS_SECONDS - 1.0
            poll.answer = self._threads.submit(self._ask, worker)
        try:
            found = poll.answer.result(_WAIT_SECONDS)
        except TimeoutError:
            return None
        poll.answer = None
        if found is not None and UNREADABLE in found:
            poll.due = self._now() + _UNREADABLE_SECONDS - 1.0
        return found

    def forget(self, job: str) -> None:
        """Forget a deleted job."""
        self._polls.pop(job, None)

    def close(self) -> None:
        """Stop all reads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
