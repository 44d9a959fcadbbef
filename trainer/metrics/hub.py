"""Write each record to all sinks. A failure here never ends a run. The entry point is `open_metrics`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from trainer.metrics.exposition import Exposition
from trainer.metrics.files import EventFile, RecordFile
from trainer.metrics.record import End, Record
from trainer.process import log_line


class Sink(Protocol):
    """A destination of records. Calls come in order, one at a time."""

    name: str

    def write(self, record: Record) -> None: ...

    def close(self) -> None:
        """Close the sink. Can be called again."""


class Metrics:
    """All sinks of this process. Only rank 0 has any.

    Any thread may write: a thread that ends the process writes the last record while the main thread hangs or trains.
    Records after an `End` or `close` are dropped.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)
        self._failing: dict[str, int] = {}
        self._lock, self._closed = threading.RLock(), False

    def write(self, record: Record) -> None:
        """Write the record to each sink. Only the first failure of a sink is printed, and when it works again."""
        with self._lock:
            for sink in () if self._closed else self._sinks:
                try:
                    sink.write(record)
                except Exception as error:  # a run is worth more than its records
                    self._failed(sink.name, error)
                else:
                    self._worked(sink.name)
            if isinstance(record, End):
                self._closed = True

    def close(self) -> None:
        """Close all sinks. Can be called again."""
        with self._lock:
            self._closed = True
            for sink in self._sinks:
                try:
                    sink.close()
                except Exception as error:
                    self._failed(sink.name, error)

    def _failed(self, name: str, error: Exception) -> None:
        lost = self._failing.get(name, 0)
        self._failing[name] = lost + 1
        if not lost:
            log_line(f"metrics: {name} can't be written: {error}; training continues", sys.stderr)

    def _worked(self, name: str) -> None:
        lost = self._failing.pop(name, 0)
        if lost:
            log_line(f"metrics: {name} is written again; {lost} records are missing", sys.stderr)


def open_metrics(run: str, *, directory: Path | None, port: int, host: str = "") -> Metrics:
    """Open the sinks of rank 0. A sink that can't be opened is one line on stderr, and the others work.

    `directory` gets `<run>.jsonl` and TensorBoard's `tensorboard/<run>`. `port` serves /metrics, 0 for none.
    """
    makers: list[tuple[str, Callable[[], Sink]]] = []
    if directory is not None:
        makers.append(("records", lambda: RecordFile(directory, run)))
        makers.append(("tensorboard", lambda: EventFile(directory / "tensorboard", run)))
    if port:
        makers.append((f"prometheus on port {port}", lambda: Exposition(run, host, port)))
    sinks = []
    for name, make in makers:
        try:
            sinks.append(make())
        except (OSError, OverflowError, ImportError) as error:
            log_line(f"metrics: no {name}: {error}; training continues", sys.stderr)
    return Metrics(sinks)
