"""Accounting of a run's time: each second counts in exactly one metric."""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from tests.integration.trainer.test_steps import create_trainer
from trainer.checkpoint import checkpointer as module
from trainer.checkpoint import save
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.save import Idle, Saver
from trainer.config import Config
from trainer.metrics.hub import Metrics
from trainer.metrics.record import Checkpoint, Record, Step, Stop, to_line
from trainer.metrics.throughput import Goodput
from trainer.reporter import Reporter
from trainer.trainer import EvaluationResult, Trainer

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("group")]

STEPS, SAVES = 20, 4
# The seconds that the tests add to each operation.
TRAINING, GATHERING, CHECKING, COPYING, WARMING, EVALUATING, READING = 0.01, 0.05, 0.06, 0.04, 0.4, 0.3, 0.7


def add_delay(patch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
    done = getattr(owner, name)

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return done(*arguments, **more)

    patch.setattr(owner, name, slow)


class RecordingSink:
    """A sink that keeps its records."""

    name = "recording"

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Do nothing."""


class Run:
    """A run with checkpoints in this process. `records` and `lines` are what it reports and logs."""

    def __init__(self, config: Config, place: Path) -> None:
        sink = RecordingSink()
        self.records, self.lines = sink.records, list[str]()
        self.trainer, self.goodput = create_trainer(replace(config, batch_size=16, owner="o")), Goodput()
        self.checkpointer = Checkpointer(str(place), self.trainer, self.goodput, self.lines.append)
        self.trainer.checkpointer = self.checkpointer
        self.reporter = Reporter(self.trainer, Metrics([sink]), self.goodput, None)
        self.checkpointer.report_to(self.reporter.write_record)


def test_run_time_counts_each_second_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds hold on a busy machine, too: no overhead counts as useful time."""
    add_delay(monkeypatch, module, "gather", GATHERING)
    add_delay(monkeypatch, Trainer, "check_weights", CHECKING)
    add_delay(monkeypatch, Trainer, "_train_step", TRAINING)
    add_delay(monkeypatch, Saver, "_stage", COPYING)
    add_delay(monkeypatch, Saver, "allocate", WARMING)
    evaluate = Trainer.evaluate

    def slow_evaluate(self: Trainer) -> EvaluationResult | None:
        found = evaluate(self)
        time.sleep(EVALUATING)
        return EvaluationResult(found.loss, found.accuracy, found.seconds + EVALUATING) if found else None

    monkeypatch.setattr(Trainer, "evaluate", slow_evaluate)
    run = Run(Config(steps=STEPS, log_every=10, evaluate_every=10, checkpoint_every=5), tmp_path)
    batch, reads = run.trainer.workload.batch, []

    def read(*arguments: Any) -> Any:
        if not reads:
            reads.append(time.sleep(READING))
        return batch(*arguments)

    monkeypatch.setattr(run.trainer.workload, "batch", read)
    start = time.perf_counter()
    assert run.trainer.run(run.reporter)
    elapsed = time.perf_counter() - start
    assert run.checkpointer.close()

    steps = [each for each in run.records if isinstance(each, Step)]
    assert [each.step for each in steps] == [10, 20]
    stall = GATHERING + CHECKING + COPYING
    for each in steps:
        assert each.checkpoint_stall_seconds >= SAVES / len(steps) * stall
        assert each.data_wait_seconds < READING, "the first batch is read before the first step"
        assert each.data_wait_seconds + each.checkpoint_stall_seconds + 9 * TRAINING <= each.seconds
    outside = READING + WARMING + GATHERING + EVALUATING + TRAINING
    assert sum(each.seconds for each in steps) <= elapsed - outside
    useful = sum(each.seconds - each.data_wait_seconds - each.checkpoint_stall_seconds for each in steps)
    assert run.goodput.carried().useful_seconds == pytest.approx(useful)
    saves = [each for each in run.records if isinstance(each, Checkpoint) and each.outcome == "saved"]
    assert saves
    assert all(each.blocked_seconds >= stall for each in saves)


def test_unreported_time_is_carried_without_its_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_delay(monkeypatch, module, "gather", 10 * GATHERING)
    add_delay(monkeypatch, Saver, "allocate", WARMING)
    add_delay(monkeypatch, Trainer, "_train_step", TRAINING)
    run = Run(Config(steps=8, log_every=100, evaluate_every=100, checkpoint_every=4), tmp_path)
    start = time.perf_counter()
    assert run.trainer.run(run.reporter, 7)
    elapsed = time.perf_counter() - start
    useful = run.goodput.carried().useful_seconds
    assert 6 * TRAINING <= useful <= elapsed - WARMING - 2 * 10 * GATHERING
    assert run.checkpointer.close()
    time.sleep(0.2)
    assert run.goodput.carried().useful_seconds == useful, "no time counts as useful after the last step"


def test_clock_that_is_set_back_makes_no_duration_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(2e9, -1000.0)
    monkeypatch.setattr(time, "time", lambda: next(now))
    run = Run(Config(steps=8, log_every=2, evaluate_every=4, checkpoint_every=3), tmp_path)
    assert run.trainer.run(run.reporter)
    assert run.checkpointer.close()
    run.reporter.end("succeeded", 0)
    assert len(run.records) > 8
    for record in run.records:
        numbers = [each for each in json.loads(to_line(record)).values() if isinstance(each, int | float)]
        assert all(each >= 0 for each in numbers), record
    assert not any("=-" in line for line in run.lines), run.lines


def test_record_during_step_has_one_step_and_position() -> None:
    """A record of a save comes from another thread, here at each line of a step."""
    trainer, sink = create_trainer(Config(steps=3, evaluate_every=9, batch_size=16)), RecordingSink()
    reporter = Reporter(trainer, Metrics([sink]), Goodput(), None)

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is Trainer._train_step.__code__:
            if event == "line":
                reporter.write_record(Stop, reason="")
            return trace
        return None

    sys.settrace(trace)
    try:
        assert trainer.run(reporter, 3)
    finally:
        sys.settrace(None)
    stops = [each for each in sink.records if isinstance(each, Stop)]
    assert {each.step for each in stops} == {0, 1, 2, 3}
    assert all(each.position == 16 * each.step for each in stops)


class Event:
    """A fake CUDA event; times are in milliseconds."""

    done, at, now = True, 0.0, 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        assert stream == "compute"
        self.at = Event.now

    def query(self) -> bool:
        return Event.done

    def synchronize(self) -> None:
        """Do nothing."""

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.mark.parametrize(
    ("done", "idle_milliseconds", "found"), [(False, 900.0, 0.0), (True, 250.0, 0.25), (True, 3000.0, 2.0)]
)
def test_wait_during_gpu_work_is_no_stall(
    done: bool, idle_milliseconds: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save.torch.cuda, "Event", Event)
    monkeypatch.setattr(save.torch.cuda, "current_stream", lambda _device: "compute")
    monkeypatch.setattr(Event, "now", 0.0)
    idle = Idle(torch.device("cuda", 0))
    monkeypatch.setattr(Event, "done", done)
    monkeypatch.setattr(Event, "now", idle_milliseconds)
    assert idle.seconds(2.0) == found
    assert Idle(torch.device("cpu")).seconds(2.0) == 2.0
