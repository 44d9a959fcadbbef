"""How far a training is, as its first worker tells Prometheus.

A pod is asked that says `prometheus.io/scrape: "true"`, at `prometheus.io/port` and `prometheus.io/path`, as the
Prometheus community's charts have it; without these two, where the trainer serves.
"""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from launcher.core import contract as c
from launcher.core.manifests import stamp
from launcher.core.torchrun import names as n
from launcher.core.torchrun.reading import JsonObject

# A pod is a user's, and may answer slowly or without end.
_SECONDS = 2.0
_MOST_BYTES = 1 << 20
# Whole numbers of a status have 64 bits, and moments end with the year 9999; no training comes near either.
_MOST = 1e11
_INDEX = "batch.kubernetes.io/job-completion-index"

log = logging.getLogger(__name__)


def first_worker(item: JsonObject, children: Iterable[JsonObject]) -> JsonObject | None:
    """The pod of rank 0 of a job that runs, if it runs and wants to be asked."""
    status = item.get("status") or {}
    if status.get("phase") != n.PHASE_RUNNING:
        return None
    job = n.attempt_name(item["metadata"]["name"], status.get("attempt") or 0)
    for each in children:
        meta = each["metadata"]
        owners = {owner.get("name") for owner in meta.get("ownerReferences") or []}
        annotations = meta.get("annotations") or {}
        if (
            each.get("kind") == "Pod"
            and job in owners
            and annotations.get(_INDEX, "0") == "0"
            and annotations.get(n.ANNOTATION_SCRAPE) == "true"
            and (each.get("status") or {}).get("phase") == "Running"
        ):
            return each
    return None


def ask(pod: JsonObject) -> JsonObject | None:
    """What is told now, in the form of the job's status; None where nothing is, or nobody answers."""
    annotations = pod["metadata"].get("annotations") or {}
    host = str((pod.get("status") or {}).get("podIP") or "")
    port = annotations.get("prometheus.io/port") or str(c.TRAINER_METRICS_PORT)
    path = annotations.get("prometheus.io/path") or c.TRAINER_METRICS_PATH
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536 and path.startswith("/")):
        return None
    try:
        return parse(_get(host, int(port), path))
    except (OSError, http.client.HTTPException, ValueError) as error:
        log.debug("pod %s tells no progress: %s", pod["metadata"]["name"], error)
        return None


def _get(host: str, port: int, path: str) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    connection.connect()
    # The connection's own timeout begins anew with every byte, those of the head, too.
    late = threading.Event()
    end = threading.Timer(_SECONDS, _cut, [connection.sock, late])
    end.start()
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"it answers {answer.status}")
        data = answer.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES or answer.length or late.is_set():
            raise ValueError("its answer is too long, takes too long or breaks off")
        return data.decode()
    finally:
        end.cancel()
        connection.close()


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):  # it has come to its end meanwhile
        connection.shutdown(socket.SHUT_RDWR)


def parse(text: str) -> JsonObject | None:
    """The status's `progress` out of the text format of Prometheus; None without a step.

    Raises ValueError where it is something else. https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in c.TRAINER_PROGRESS.values() and abs(sample.value) < _MOST
    }
    told = {key: values[name] for key, name in c.TRAINER_PROGRESS.items() if name in values}
    told = {key: value for key, value in told.items() if value >= 0 or key == "loss"}
    if "step" not in told:
        return None
    tokens = "tokensPerSecond" in told
    found: dict[str, Any] = {
        "step": int(told["step"]),
        "loss": _short(told.get("loss")),
        "throughput": _short(told.get("tokensPerSecond" if tokens else "samplesPerSecond")),
        "unit": ("tokens/s" if tokens else "samples/s"),
        "checkpointStep": int(told["checkpointStep"]) if "checkpointStep" in told else None,
        "checkpointTime": stamp(told["checkpointTime"]) if "checkpointTime" in told else None,
    }
    if found["throughput"] is None:
        del found["unit"]
    return {key: value for key, value in found.items() if value is not None}


def _short(value: float | None) -> float | None:
    """With six digits: kubectl shows all that there are."""
    return None if value is None else float(f"{value:.6g}")
