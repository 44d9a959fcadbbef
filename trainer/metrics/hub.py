"""Tells each record to all who take them. Whatever fails here never ends a training."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from trainer.metrics.exposition import Exposition
from trainer.metrics.files import EventFile, RecordFile
from trainer.metrics.record import Record


class Sink(Protocol):
    """Takes records, in order and from one thread."""

    name: str

    def write(self, record: Record) -> None:
        """Take one record, or raise what went wrong."""

    def close(self) -> None:
        """No record comes any more; may be called twice."""


class Metrics:
    """All sinks of this process: those of rank 0, none in any other.

    Any thread may tell, one after another: one that ends the process tells the last record beside a main thread that
    hangs or still trains. What comes after `close` is dropped.
    """

    def __init__(self, sinks: Sequence[Sink], stream: TextIO | None = None) -> None:
        self._sinks = list(sinks)
        self._stream = stream
        self._failing: dict[str, int] = {}
        self._lock, self._closed = threading.RLock(), False

    def tell(self, record: Record) -> None:
        """Give the record to each sink. One that fails is said once, and again when it works again."""
        with self._lock:
            for sink in () if self._closed else self._sinks:
                try:
                    sink.write(record)
                except Exception as error:  # a training of days is worth more than any record of it
                    self._failed(sink.name, error)
                else:
                    self._worked(sink.name)

    def close(self) -> None:
        """Ends all sinks. Can be repeated."""
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
            _say(f"metrics: {name} can't be written: {error}; training goes on without", self._stream)

    def _worked(self, name: str) -> None:
        lost = self._failing.pop(name, 0)
        if lost:
            _say(f"metrics: {name} is written again; {lost} records are missing", self._stream)


def open_metrics(
    run: str,
    *,
    directory: Path | None,
    tensorboard: bool,
    port: int,
    host: str = "",
    stream: TextIO | None = None,
) -> Metrics:
    """The sinks of rank 0: `<directory>/<run>.jsonl`, events in `<directory>/tensorboard/<run>`, /metrics on `port`.

    No `directory` writes no files, port 0 serves nothing. What can't be opened is one line on `stream` (the standard
    error output), and the others go on.
    """
    makers: list[tuple[str, Callable[[], Sink]]] = []
    if directory is not None:
        makers.append(("records", lambda: RecordFile(directory, run)))
        if tensorboard:
            makers.append(("tensorboard", lambda: EventFile(directory / "tensorboard", run)))
    if port:
        makers.append((f"prometheus on port {port}", lambda: Exposition(run, host, port)))
    sinks = []
    for name, make in makers:
        try:
            sinks.append(make())
        except (OSError, OverflowError, ImportError) as error:
            _say(f"metrics: no {name}: {error}; training goes on without", stream)
    return Metrics(sinks, stream)


def _say(line: str, stream: TextIO | None) -> None:
    print(f"{line}\n", end="", file=stream or sys.stderr, flush=True)
