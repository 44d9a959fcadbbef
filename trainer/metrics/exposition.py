"""Serve the metrics of a run to Prometheus: GET /metrics on a port of rank 0's pod. The entry point is `Exposition`."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainer.metrics.record import Alarm, Checkpoint, Evaluation, Record, Start, Step

PATH: Final = "/metrics"
# Clients are served one at a time. A silent or slow client delays the next one by no more than this.
SILENT_SECONDS: Final = 2.0


def families(tally: Tally) -> Iterator[Metric]:
    """Yield each metric that has a value. docs/training-metrics.md has the table."""

    def gauge(name: str, help_text: str, value: float | None, **labels: str) -> Iterator[Metric]:
        if value is None:
            return
        family = GaugeMetricFamily(f"trainyard_trainer_{name}", help_text, labels=["run", *labels])
        family.add_metric([tally.run, *labels.values()], value)
        yield family

    def counter(name: str, help_text: str, values: dict[str, float], label: str | None = None) -> Metric:
        labels = ["run"] if label is None else ["run", label]
        family = CounterMetricFamily(f"trainyard_trainer_{name}", help_text, labels=labels)
        for key, value in sorted(values.items()):
            family.add_metric([tally.run, key][: len(labels)], value)
        return family

    start, last, evaluation = tally.start, tally.last, tally.evaluation
    if start is not None:
        help_text = "1, with the model, the device and the precision as labels"
        labels = {"workload": start.workload, "device": start.device, "precision": start.precision}
        yield from gauge("info", help_text, 1, **labels)
        yield from gauge("processes", "Processes that train", start.world_size)
        yield from gauge("restart", "Earlier attempts of this run", start.restart)
    yield from gauge("step", "Optimizer steps done since the start of the run", tally.step)
    yield from gauge(
        "position_samples", "Samples used by all processes since the start of the run", tally.position
    )
    if last is not None:
        yield from gauge("loss", "Mean loss per unit over the last steps", last.loss)
        help_text = "Training samples per second, of all processes together"
        yield from gauge("samples_per_second", help_text, last.samples_per_second)
        if start is not None and start.unit == "tokens":
            help_text = "Training tokens per second, of all processes together"
            yield from gauge("tokens_per_second", help_text, last.units_per_second)
        help_text = "Model FLOPs over the peak of the GPUs, 0 to 1"
        yield from gauge("mfu_ratio", help_text, last.mfu)
        help_text = "Share of the time since the start of the run in which useful steps were computed"
        yield from gauge("goodput_ratio", help_text, last.goodput)
        help_text = "Share of the time of the last steps spent waiting for input"
        yield from gauge("data_wait_ratio", help_text, last.data_wait_seconds / last.seconds)
    if evaluation is not None:
        yield from gauge("evaluation_loss", "Mean loss per unit over the test data", evaluation.loss)
        help_text = "Share of correct units over the test data"
        yield from gauge("evaluation_accuracy_ratio", help_text, evaluation.accuracy)
    yield counter("data_wait_seconds", "Seconds spent waiting for input", {"": tally.data_wait_seconds})
    help_text = "Seconds spent waiting for checkpoints"
    yield counter("checkpoint_stall_seconds", help_text, {"": tally.checkpoint_stall_seconds})
    yield counter("checkpoints", "Checkpoints by outcome", dict(tally.checkpoints), "outcome")
    help_text = "When the last good checkpoint was complete, in seconds since 1970"
    yield from gauge("checkpoint_last_timestamp_seconds", help_text, tally.last_saved)
    yield from gauge("checkpoint_last_step", "The step of the last good checkpoint", tally.last_saved_step)
    yield counter("alarms", "Alarms by kind", dict(tally.alarms), "alarm")


class _Values(Collector):
    """Read the tally once per scrape, so that all values of a response are consistent."""

    def __init__(self, read: Callable[[], Tally]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return families(self._read())


class _Server(TCPServer):
    """Serve scrapes one after another in one thread, so that many clients do not slow training.

    This is not an `HTTPServer`, because that one resolves its own host name, which may take long.
    """

    allow_reuse_address = True

    def __init__(self, read: Callable[[], Tally], host: str, port: int) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Values(read))
        # In an IPv6 cluster, pods have IPv6 addresses only.
        if ":" in host or (not host and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Scrape)

    def server_bind(self) -> None:
        """Bind. The IPv6 wildcard address also accepts IPv4."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, *_: object) -> None:
        """Ignore clients that closed the connection. Print other errors, and continue to serve."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"metrics: a scrape failed: {error!r}", file=sys.stderr, flush=True)


class _Scrape(BaseHTTPRequestHandler):
    timeout = SILENT_SECONDS
    server: _Server
    server_version, sys_version = "trainyard-trainer", ""

    def do_GET(self) -> None:
        if urlsplit(self.path).path != PATH:
            self.send_error(404)
            return
        data = generate_latest(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Do not log scrapes, which would hide the log lines of the run."""


class Exposition:
    """Keep a tally of the records and serve it. One thread writes; a scrape reads a consistent tally."""

    name = "prometheus"

    def __init__(self, run: str, host: str, port: int) -> None:
        """Listen on `host` ("" for all addresses). Raise OSError on a failure."""
        self._tally = Tally(run=run)
        self._server = _Server(lambda: self._tally, host, port)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Add a record to the tally."""
        self._tally = after(self._tally, record)

    def close(self) -> None:
        """Stop the server. Can be called again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The values of one process. Counts start at 0; unknown values are None."""

    run: str
    step: int = 0
    position: int = 0
    start: Start | None = None
    last: Step | None = None
    evaluation: Evaluation | None = None
    data_wait_seconds: float = 0.0
    checkpoint_stall_seconds: float = 0.0
    checkpoints: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys(("saved", "failed", "skipped"), 0)
    )
    last_saved: float | None = None
    last_saved_step: int | None = None
    alarms: Mapping[str, int] = field(default_factory=dict)


def after(tally: Tally, record: Record) -> Tally:
    """Return the tally with `record`. Pure."""
    now = replace(tally, step=max(tally.step, record.step), position=max(tally.position, record.position))
    match record:
        case Start():
            return replace(now, start=record, step=record.step, position=record.position)
        case Step():
            return replace(
                now,
                last=record,
                data_wait_seconds=tally.data_wait_seconds + record.data_wait_seconds,
                checkpoint_stall_seconds=tally.checkpoint_stall_seconds + record.checkpoint_stall_seconds,
            )
        case Evaluation():
            return replace(now, evaluation=record)
        case Checkpoint():
            counted = replace(now, checkpoints=_one_more(tally.checkpoints, record.outcome))
            if record.outcome != "saved":
                return counted
            return replace(counted, last_saved=record.time, last_saved_step=record.step)
        case Alarm():
            return replace(now, alarms=_one_more(tally.alarms, record.alarm))
    return now


def _one_more(counts: Mapping[str, int], key: str) -> Mapping[str, int]:
    return {**counts, key: counts.get(key, 0) + 1}
