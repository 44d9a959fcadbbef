"""Serve the metrics of a run to Prometheus: GET /metrics on a port of rank 0's pod. The entry point is `Exposition`."""

from __future__ import annotations

import socket
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from trainer.metrics.record import Alarm, Checkpoint, Evaluation, Record, Start, Step

PREFIX: Final = "trainyard_trainer_"
# docs/training-metrics.md has the table. A gauge without a value is absent from a scrape.
_GAUGES: Final = {
    "processes": "Processes that train",
    "restart": "Earlier attempts of this run",
    "step": "Optimizer steps done since the start of the run",
    "position_samples": "Samples used by all processes since the start of the run",
    "loss": "Mean loss per unit over the last steps",
    "samples_per_second": "Training samples per second, of all processes together",
    "tokens_per_second": "Training tokens per second, of all processes together",
    "mfu_ratio": "Model FLOPs over the peak of the GPUs, 0 to 1",
    "goodput_ratio": "Share of the time since the start of the run in which useful steps were computed",
    "data_wait_ratio": "Share of the time of the last steps spent waiting for input",
    "evaluation_loss": "Mean loss per unit over the test data",
    "evaluation_accuracy_ratio": "Share of correct units over the test data",
    "checkpoint_last_timestamp_seconds": "When the last good checkpoint was complete, in seconds since 1970",
    "checkpoint_last_step": "The step of the last good checkpoint",
}


class Exposition:
    """Keep the values of the records and serve them."""

    name = "prometheus"

    def __init__(self, run: str, host: str, port: int) -> None:
        """Listen on `host` ("" for all addresses, of IPv6 and IPv4). Raise OSError on a failure."""
        self._run = run
        self._step = self._position = 0
        self._has_tokens = False
        registry = CollectorRegistry()
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, ["run", *labels], registry=registry)

        self._gauges = {
            name: Gauge(PREFIX + name, text, ["run"], registry=registry) for name, text in _GAUGES.items()
        }
        text = "1, with the model, the device and the precision as labels"
        self._info = Gauge(
            f"{PREFIX}info", text, ["run", "workload", "device", "precision"], registry=registry
        )
        self._data_wait = counter("data_wait_seconds", "Seconds spent waiting for input").labels(run)
        self._stall = counter("checkpoint_stall_seconds", "Seconds spent waiting for checkpoints").labels(run)
        self._checkpoints = counter("checkpoints", "Checkpoints by outcome", "outcome")
        for outcome in ("saved", "failed", "skipped"):
            self._checkpoints.labels(run, outcome)
        self._alarms = counter("alarms", "Alarms by kind", "alarm")
        self._set(step=0, position_samples=0)
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - Prometheus is on another node
        self._server, self._thread = start_http_server(port, host or everywhere, registry)
        # Otherwise a client that resets its connection prints a traceback into the log of the run.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port: int = self._server.server_port

    def write(self, record: Record) -> None:
        """Set the values of a record. A late record of an earlier step does not set the step back."""
        self._step, self._position = max(self._step, record.step), max(self._position, record.position)
        self._set(step=self._step, position_samples=self._position)
        match record:
            case Start():
                self._info.labels(self._run, record.workload, record.device, record.precision).set(1)
                self._set(processes=record.world_size, restart=record.restart)
                self._has_tokens = record.unit == "tokens"
            case Step():
                self._set(
                    loss=record.loss,
                    samples_per_second=record.samples_per_second,
                    tokens_per_second=record.units_per_second if self._has_tokens else None,
                    mfu_ratio=record.mfu,
                    goodput_ratio=record.goodput,
                    data_wait_ratio=record.data_wait_seconds / record.seconds,
                )
                self._data_wait.inc(record.data_wait_seconds)
                self._stall.inc(record.checkpoint_stall_seconds)
            case Evaluation():
                self._set(evaluation_loss=record.loss, evaluation_accuracy_ratio=record.accuracy)
            case Checkpoint():
                self._checkpoints.labels(self._run, record.outcome).inc()
                if record.outcome == "saved":
                    # The record is of the step at which the save ended.
                    step = int(record.name.rpartition("-")[2])
                    self._set(checkpoint_last_timestamp_seconds=record.time, checkpoint_last_step=step)
            case Alarm():
                self._alarms.labels(self._run, record.alarm).inc()

    def _set(self, **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(self._run).set(value)

    def close(self) -> None:
        """Stop the server. Can be called again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
