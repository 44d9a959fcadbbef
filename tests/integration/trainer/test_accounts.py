"""Where a training's seconds go: each to one figure, and to the right one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.integration.trainer.test_steps import training
from trainer import checkpoints as module
from trainer.checkpoint import save
from trainer.checkpoint.save import Idle, Saver
from trainer.checkpoints import Checkpoints
from trainer.config import Config
from trainer.metrics.hub import Metrics
from trainer.metrics.record import Checkpoint, Record, Step
from trainer.metrics.throughput import Goodput
from trainer.reporter import Reporter
from trainer.trainer import EvaluationResult, Trainer

pytestmark = pytest.mark.trainer

STEPS, SAVES = 20, 4
# What each takes here, in seconds, beside what it takes anyway.
LEARNING, GATHERING, CHECKING, COPYING, WARMING, JUDGING, READING = 0.01, 0.05, 0.06, 0.04, 0.4, 0.3, 0.7


def slower(patch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
    done = getattr(owner, name)

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return done(*arguments, **more)

    patch.setattr(owner, name, slow)


class Kept:
    """A sink that keeps what it is told."""

    name = "kept"

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing."""


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_each_second_of_a_training_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that hold on a busy machine, too: what is known to be no use is in no useful second."""
    slower(monkeypatch, module, "gather", GATHERING)
    slower(monkeypatch, Trainer, "check_weights", CHECKING)
    slower(monkeypatch, Trainer, "_train_step", LEARNING)
    slower(monkeypatch, Saver, "_stage", COPYING)
    slower(monkeypatch, Saver, "warm", WARMING)
    evaluate = Trainer.evaluate

    def evaluated(self: Trainer) -> EvaluationResult | None:
        found = evaluate(self)
        time.sleep(JUDGING)
        return EvaluationResult(found.loss, found.accuracy, found.seconds + JUDGING) if found else None

    monkeypatch.setattr(Trainer, "evaluate", evaluated)
    config = Config(
        steps=STEPS, log_every=10, evaluate_every=10, checkpoint_every=5, batch_size=16, owner="o"
    )
    own, goodput, kept = training(config), Goodput(), Kept()
    batch, reads = own.workload.batch, []

    def read(*arguments: Any) -> Any:
        if not reads:
            reads.append(time.sleep(READING))
        return batch(*arguments)

    monkeypatch.setattr(own.workload, "batch", read)
    monkeypatch.setattr(own, "_lay_out_buckets", lambda: None)  # it would read the first step's data before
    checkpoints = Checkpoints(str(tmp_path), own, goodput, lambda _line: None)
    reporter = Reporter(own, checkpoints, Metrics([kept]), goodput, None)
    began = time.perf_counter()
    assert own.run(reporter)
    passed = time.perf_counter() - began
    blocked = checkpoints.counts.blocked_seconds
    assert checkpoints.end()

    told = [each for each in kept.records if isinstance(each, Step)]
    assert [each.step for each in told] == [10, 20]
    stall = GATHERING + CHECKING + COPYING
    for each in told:
        assert each.checkpoint_stall_seconds >= SAVES / len(told) * stall
        assert each.data_wait_seconds < READING, "the first batch is read before the first step"
        assert each.data_wait_seconds + each.checkpoint_stall_seconds + 9 * LEARNING <= each.seconds
    assert sum(each.checkpoint_stall_seconds for each in told) == pytest.approx(blocked, abs=0.3)
    outside = READING + WARMING + GATHERING + JUDGING + LEARNING
    assert sum(each.seconds for each in told) <= passed - outside
    useful = sum(each.seconds - each.data_wait_seconds - each.checkpoint_stall_seconds for each in told)
    assert goodput.carried().useful_seconds == pytest.approx(useful)
    saves = [each for each in kept.records if isinstance(each, Checkpoint) and each.outcome == "saved"]
    assert saves
    assert all(each.blocked_seconds >= stall for each in saves)


def test_unreported_time_is_carried_without_its_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower(monkeypatch, module, "gather", 10 * GATHERING)
    slower(monkeypatch, Saver, "warm", WARMING)
    slower(monkeypatch, Trainer, "_train_step", LEARNING)
    config = Config(steps=8, log_every=100, evaluate_every=100, checkpoint_every=4, batch_size=16, owner="o")
    own, goodput = training(config), Goodput()
    checkpoints = Checkpoints(str(tmp_path), own, goodput, lambda _line: None)
    began = time.perf_counter()
    assert own.run(Reporter(own, checkpoints, Metrics([]), goodput, None), 7)
    passed = time.perf_counter() - began
    useful = goodput.carried().useful_seconds
    assert 6 * LEARNING <= useful <= passed - WARMING - 2 * 10 * GATHERING
    assert checkpoints.end()
    time.sleep(0.2)
    assert goodput.carried().useful_seconds == useful, "what comes after the last step teaches nothing"


def test_a_training_without_checkpoints_counts_its_last_steps_too() -> None:
    config = Config(steps=30, log_every=20, evaluate_every=100, batch_size=16)
    own, goodput = training(config), Goodput()
    found: list[float] = []

    class Noted(Reporter):
        def stepped(self, training: Trainer) -> None:
            super().stepped(training)
            found.append(goodput.carried().useful_seconds)

    assert own.run(Noted(own, None, Metrics([]), goodput, None))
    assert found[0] == 0
    assert found[19] < found[24] < found[29]


class Event:
    """A mark in a device's work: `query` is whether it came to it, times are in milliseconds."""

    done, at, now = True, 0.0, 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        assert stream == "compute"
        self.at = Event.now

    def query(self) -> bool:
        return Event.done

    def synchronize(self) -> None:
        """Nothing."""

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.mark.parametrize(
    ("done", "idle_milliseconds", "found"), [(False, 900.0, 0.0), (True, 250.0, 0.25), (True, 3000.0, 2.0)]
)
def test_a_wait_beside_which_a_gpu_computes_is_no_stall(
    done: bool, idle_milliseconds: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save.torch.cuda, "Event", Event)
    monkeypatch.setattr(save.torch.cuda, "current_stream", lambda _device: "compute")
    monkeypatch.setattr(Event, "now", 0.0)
    watched = Idle(torch.device("cuda", 0))
    monkeypatch.setattr(Event, "done", done)
    monkeypatch.setattr(Event, "now", idle_milliseconds)
    assert watched.seconds(2.0) == found
    assert Idle(torch.device("cpu")).seconds(2.0) == 2.0
