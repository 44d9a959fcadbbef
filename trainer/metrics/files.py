"""The files with a run's records: JSON lines in `<directory>/<run>.jsonl`, and TensorBoard events.

Each attempt of a run appends to the JSON lines. `read_history` reads them back: what was trained when, where the run
restarted, and which work was lost. `tensorboard --logdir <directory>` shows all runs of the directory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainer.metrics.record import Checkpoint, Evaluation, Record, Start, Step, from_line, to_line


class RecordFile:
    """One open file. Each record is there whole or not at all, whenever the process is killed or the disk is full.

    Records are handed to the kernel at once and not synced: they outlive the process, and the last seconds of them may
    not outlive the machine.
    """

    name = "records"

    def __init__(self, directory: Path, run: str) -> None:
        """Opens or makes the file, and its directory. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{run}.jsonl"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._end_torn_line()
        except OSError:
            os.close(self._file)
            raise

    def _end_torn_line(self) -> None:
        """A machine that was lost may have left half a line: it must not swallow the next one."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._append(b"\n")

    def write(self, record: Record) -> None:
        """Append one line. Raises OSError; the file is then as it was."""
        self._append(to_line(record).encode())

    def _append(self, data: bytes) -> None:
        before = os.fstat(self._file).st_size
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            if done:
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


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


@dataclass(frozen=True, kw_only=True)
class Training:
    """From one start to the next. `steps` and `evaluations` are in the order in which they were written.

    `lost_after` is the step from which the next training went on, so that later ones were done again; None where
    nothing was lost.
    """

    start: Start
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    lost_after: int | None

    def kept(self, record: Record) -> bool:
        """Whether the model still knows of this record's step."""
        return self.lost_after is None or record.step <= self.lost_after


@dataclass(frozen=True, kw_only=True)
class History:
    """All trainings of one run; `problems` names each line that is no record, and why."""

    run: str
    trainings: tuple[Training, ...]
    problems: tuple[str, ...]


def read_history(lines: Iterable[str], place: str) -> History:
    """What these lines of the file `place` tell. Lines that are no record are skipped and named.

    Raises ValueError where they hold nothing to draw: no line at all, none that is a record, no start or no steps.
    """
    records: list[Record] = []
    problems = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(from_line(line))
        except ValueError as error:
            problems.append(f"{place} line {number} is skipped: {error}")
    if not records:
        first = f"; {problems[0]}" if problems else ""
        raise ValueError(f"{place} holds no records of a training{first}")
    trainings = _trainings(records)
    if not any(training.steps for training in trainings):
        raise ValueError(f"{place} holds no steps yet; the first are told after --log-every of them")
    return History(run=records[0].run, trainings=trainings, problems=tuple(problems))


def _trainings(records: list[Record]) -> tuple[Training, ...]:
    starts = [number for number, record in enumerate(records) if isinstance(record, Start)]
    found: list[Training] = []
    # From the last to the first, since what a training lost shows in those after it: one that began at step 40 and was
    # itself followed by one from step 20 leaves 20 of the first.
    resumed: int | None = None
    for begin, end in reversed(list(pairwise([*starts, len(records)]))):
        start, own = records[begin], records[begin + 1 : end]
        assert isinstance(start, Start)  # noqa: S101 - `starts` are the places of these
        reached = max((record.step for record in own), default=start.step)
        found.append(
            Training(
                start=start,
                steps=tuple(record for record in own if isinstance(record, Step)),
                evaluations=tuple(record for record in own if isinstance(record, Evaluation)),
                lost_after=resumed if resumed is not None and resumed < reached else None,
            )
        )
        resumed = start.step if resumed is None else min(resumed, start.step)
    return tuple(reversed(found))
