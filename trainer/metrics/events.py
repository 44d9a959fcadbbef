"""The records as event files of TensorBoard: `tensorboard --logdir <directory>` draws all runs in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainer.metrics.record import Checkpoint, Evaluation, Record, Start, Step

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

# A flush syncs the file, which may take a while on a shared file system. TensorBoard itself looks every 5 s.
FLUSH_SECONDS: Final = 10.0


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """(tag, value) pairs that TensorBoard draws over the step."""
    match record:
        case Step():
            yield "train/loss", record.loss
            if record.accuracy is not None:
                yield "train/accuracy", record.accuracy
            yield "train/learning_rate", record.learning_rate
            yield "speed/samples_per_second", record.samples_per_second
            yield "speed/units_per_second", record.units_per_second
            if record.mfu is not None:
                yield "speed/mfu", record.mfu
            yield "speed/data_wait_share", record.data_wait_seconds / record.seconds
            yield "speed/goodput", record.goodput
        case Evaluation():
            yield "evaluation/loss", record.loss
            if record.accuracy is not None:
                yield "evaluation/accuracy", record.accuracy
        case Checkpoint(outcome="saved"):
            yield "checkpoint/blocked_seconds", record.blocked_seconds
            if record.durable_seconds is not None:
                yield "checkpoint/durable_seconds", record.durable_seconds


class EventFile:
    """Event files in `<directory>/<run>`, one for each training of the run.

    Written by tensorboardX's writer of single events and not by its SummaryWriter: of that the thread that writes ends
    with the first failure, and the tenth event afterwards waits forever (tensorboardX 2.6.5, event_file_writer.py).
    """

    name = "tensorboard"

    def __init__(self, directory: Path, run: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes the directory; the file comes with the first record. Raises OSError, or ImportError."""
        import tensorboardX.event_file_writer  # noqa: F401 - that it is missing is told at once, not at the first record

        self._directory = directory / run
        self._directory.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._writer: EventsWriter | None = None
        self._flushed = clock()

    def write(self, record: Record) -> None:
        """One event. Raises OSError; what was not flushed is then lost, and the next record begins a new file."""
        events = list(_events(record))
        if not events:
            return
        try:
            writer = self._writer or self._opened()
            for event in events:
                writer.write_event(event)
            if self._clock() - self._flushed >= FLUSH_SECONDS:
                self._flush(writer)
        except OSError:
            self._drop()
            raise

    def close(self) -> None:
        """Flushes and closes; a second time does nothing. Raises OSError where the last events can't be written."""
        if self._writer is None:
            return
        try:
            self._flush(self._writer)
        finally:
            self._drop()

    def _opened(self) -> EventsWriter:
        from tensorboardX.event_file_writer import EventsWriter

        # The name has whole seconds in it: without a number a second file of one second would overwrite the first.
        number = sum(1 for _ in self._directory.iterdir())
        self._writer = EventsWriter(str(self._directory / "events"), f".{number}")
        return self._writer

    def _flush(self, writer: EventsWriter) -> None:
        writer.flush()
        self._flushed = self._clock()

    def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # Closing flushes once more, which fails as the flush before did.
            with contextlib.suppress(OSError):
                writer._py_recordio_writer.close()


def _events(record: Record) -> Iterator[Any]:
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    if isinstance(record, Start):
        # What an earlier training wrote of steps that are done again is not drawn
        # (github.com/tensorflow/tensorboard, tensorboard/backend/event_processing/event_accumulator.py).
        log = SessionLog(status=SessionLog.START)
        yield Event(wall_time=record.time, step=record.step + 1, session_log=log)
        return
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
    if values:
        yield Event(wall_time=record.time, step=record.step, summary=Summary(value=values))
