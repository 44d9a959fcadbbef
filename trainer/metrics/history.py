"""The file of a run read back: what was trained when, where trainings began anew, and which work was lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from trainer.metrics.record import Evaluation, Record, Start, Step, from_line


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
