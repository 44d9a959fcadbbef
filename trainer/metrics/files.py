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
    """The JSON lines of a run. A record is written completely or not at all, also if the disk is full.

    Records are passed to the kernel at once, but not synced: they outlive the process, but the last seconds may be lost
    with the node.
    """

    name = "records"

    def __init__(self, directory: Path, run: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{run}.jsonl"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._end_torn_line()
        except OSError:
            os.close(self._file)
            raise

    def _end_torn_line(self) -> None:
        """End an incomplete line that a lost node may have left, so that the next line is separate."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._append(b"\n")

    def write(self, record: Record) -> None:
        """Append one line. Raise OSError; the file is unchanged then."""
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
        """Close the file. Can be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

# A flush syncs the file, which may be slow on a shared file system. TensorBoard reads every 5 s.
FLUSH_SECONDS: Final = 10.0


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the (tag, value) pairs of a record for TensorBoard."""
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
    """Event files for TensorBoard in `<directory>/<run>`, one for each attempt of the run.

    This uses tensorboardX's EventsWriter instead of its SummaryWriter, whose thread ends after the first failure, so
    that the tenth event after it blocks forever (tensorboardX 2.6.5, event_file_writer.py).
    """

    name = "tensorboard"

    def __init__(self, directory: Path, run: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the directory. The first record creates the file. Raise OSError or ImportError."""
        import tensorboardX.event_file_writer  # noqa: F401 - a missing package is an error now, not at the first record

        self._directory = directory / run
        self._directory.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._writer: EventsWriter | None = None
        self._flushed = clock()

    def write(self, record: Record) -> None:
        """Write the events of a record. Raise OSError; unflushed events are lost then, and the next file begins."""
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
        """Flush and close. Can be called again. Raise OSError if the last events can't be written."""
        if self._writer is None:
            return
        try:
            self._flush(self._writer)
        finally:
            self._drop()

    def _opened(self) -> EventsWriter:
        from tensorboardX.event_file_writer import EventsWriter

        # The name has a time in seconds. Without a number, a second file in the same second would overwrite the first.
        number = sum(1 for _ in self._directory.iterdir())
        self._writer = EventsWriter(str(self._directory / "events"), f".{number}")
        return self._writer

    def _flush(self, writer: EventsWriter) -> None:
        writer.flush()
        self._flushed = self._clock()

    def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # Closing flushes again, and fails like the flush before.
            with contextlib.suppress(OSError):
                writer._py_recordio_writer.close()


def _events(record: Record) -> Iterator[Any]:
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    if isinstance(record, Start):
        # TensorBoard then discards what an earlier attempt wrote of steps that are done again
        # (github.com/tensorflow/tensorboard, tensorboard/backend/event_processing/event_accumulator.py).
        log = SessionLog(status=SessionLog.START)
        yield Event(wall_time=record.time, step=record.step + 1, session_log=log)
        return
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
    if values:
        yield Event(wall_time=record.time, step=record.step, summary=Summary(value=values))


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The records from one start to the next, in the order of the file.

    `lost_after` is the step from which a later attempt resumed, so that later steps were done again; None if nothing
    was lost.
    """

    start: Start
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    lost_after: int | None

    def is_kept(self, record: Record) -> bool:
        """Return whether the step of this record was not lost."""
        return self.lost_after is None or record.step <= self.lost_after


@dataclass(frozen=True, kw_only=True)
class History:
    """All attempts of one run. `problems` has a message for each invalid line."""

    run: str
    attempts: tuple[Attempt, ...]
    problems: tuple[str, ...]


def read_history(lines: Iterable[str], place: str) -> History:
    """Read the lines of the file `place`. Invalid lines are skipped, and get a message in `problems`.

    Raises:
        ValueError: There is no record, no start or no steps.
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
        raise ValueError(f"{place} has no records of a run{first}")
    attempts = _split_attempts(records)
    if not any(attempt.steps for attempt in attempts):
        raise ValueError(f"{place} has no steps yet; the first record comes after --log-every steps")
    return History(run=records[0].run, attempts=attempts, problems=tuple(problems))


def _split_attempts(records: list[Record]) -> tuple[Attempt, ...]:
    starts = [number for number, record in enumerate(records) if isinstance(record, Start)]
    found: list[Attempt] = []
    # From the last to the first, because later attempts show what an attempt lost. If the second one starts at step 40
    # and the third at step 20, only 20 steps of the first remain.
    resumed: int | None = None
    for begin, end in reversed(list(pairwise([*starts, len(records)]))):
        start, own = records[begin], records[begin + 1 : end]
        assert isinstance(start, Start)  # noqa: S101 - by the definition of `starts`
        reached = max((record.step for record in own), default=start.step)
        found.append(
            Attempt(
                start=start,
                steps=tuple(record for record in own if isinstance(record, Step)),
                evaluations=tuple(record for record in own if isinstance(record, Evaluation)),
                lost_after=resumed if resumed is not None and resumed < reached else None,
            )
        )
        resumed = start.step if resumed is None else min(resumed, start.step)
    return tuple(reversed(found))
