"""What Prometheus is told: the run's last values and its counts, made of the records one after another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainer.metrics.record import Alarm, Checkpoint, Evaluation, Record, Start, Step


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Values of one process: counts begin at 0 with it. What was not told yet is None."""

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
    """The tally once `record` was told."""
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
