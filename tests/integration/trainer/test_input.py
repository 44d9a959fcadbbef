"""The prefetcher's thread: all samples in order, a bounded number of steps ahead, and no lost error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from trainer.contract import Exit, TrainerError
from trainer.data import Cursor, Prefetcher, Step, evaluation_steps, training_steps
from trainer.workloads import Workload, load
from trainer.world import World

pytestmark = pytest.mark.trainer

CPU = torch.device("cpu")
LIMIT_SECONDS = 30


def world(rank: int = 0, size: int = 1) -> World:
    return World(rank, size, rank, size, 1)


@pytest.fixture(scope="module")
def digits() -> Workload:
    return load("digits")


def step(number: int) -> Step:
    return Step(1, 1, number, ((torch.tensor([number]), torch.tensor([number])),))


def wait_for_event(reached: threading.Event) -> None:
    assert reached.wait(LIMIT_SECONDS)


def test_shares_of_all_processes_make_the_cursors_steps(digits: Workload) -> None:
    cursor, size = Cursor(digits.train_samples, 5, 64), 3
    start = 1438 - 64 - 30
    plans = [training_steps(digits, cursor, world(rank, size), 10, start, 3) for rank in range(size)]
    steps_of_all = zip(*(Prefetcher(plan, CPU) for plan in plans), strict=True)
    position = start
    for shares in steps_of_all:
        batch = cursor.batch(position)
        assert {(each.epoch, each.samples, each.end) for each in shares} == {
            (batch.epoch, len(batch.indices), batch.end)
        }
        inputs = [row for each in shares for part, _ in each.parts for row in part.flatten(1).tolist()]
        labels = [label for each in shares for _, part in each.parts for label in part.tolist()]
        expected = digits.batch(batch.indices, "train")
        assert sorted(inputs) == sorted(expected[0].flatten(1).tolist())
        assert sorted(labels) == sorted(expected[1].tolist())
        assert max(len(part) for each in shares for part, _ in each.parts) <= 10
        position = batch.end
    assert position == 1438 + 64  # 64 and 30 to the end of the first epoch, 64 of the second


def test_process_without_a_share_gets_one_empty_part(digits: Workload) -> None:
    (found,) = training_steps(digits, Cursor(1438, 0, 2), world(2, 3), 10, 0, 1)
    assert found.samples == 2
    assert [len(labels) for _, labels in found.parts] == [0]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_evaluation_has_every_sample_once_in_equal_step_counts(digits: Workload, size: int) -> None:
    plans = [list(evaluation_steps(digits, world(rank, size), 50)) for rank in range(size)]
    assert {len(plan) for plan in plans} == {-(-359 // (50 * size))}
    assert all(len(each.parts) == 1 and len(each.parts[0][1]) <= 50 for plan in plans for each in plan)
    seen = [row for plan in plans for each in plan for row in each.parts[0][0].flatten(1).tolist()]
    assert sorted(seen) == sorted(digits.batch(np.arange(359), "test")[0].flatten(1).tolist())
    assert sum(each.samples for each in plans[0]) == 359


def test_prefetcher_yields_steps_in_order_and_ends() -> None:
    with Prefetcher((step(number) for number in range(50)), CPU) as steps:
        assert [each.end for each in steps] == list(range(50))
        with pytest.raises(StopIteration):
            next(steps)


def test_prefetcher_makes_at_most_the_set_steps_ahead() -> None:
    made: list[int] = []
    enough = threading.Event()

    def plan() -> Iterator[Step]:
        for number in range(20):
            made.append(number)
            if number == 3:
                enough.set()
            yield step(number)

    with Prefetcher(plan(), CPU, ahead=3) as steps:
        wait_for_event(enough)  # three are ready; the fourth waits for space
        time.sleep(0.05)
        assert made == [0, 1, 2, 3]
        next(steps)
        for _ in range(LIMIT_SECONDS * 100):
            if len(made) == 5:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        assert made == [0, 1, 2, 3, 4]


def test_prefetcher_raises_an_error_at_its_step() -> None:
    error = TrainerError(Exit.DATA, "data: damaged")

    def plan() -> Iterator[Step]:
        yield step(0)
        yield step(1)
        raise error

    with Prefetcher(plan(), CPU, ahead=5) as steps:
        assert [next(steps).end, next(steps).end] == [0, 1]
        for _ in range(2):
            with pytest.raises(TrainerError) as caught:
                next(steps)
            assert caught.value is error


def test_prefetcher_closed_early_stops_its_waiting_thread() -> None:
    full = threading.Event()

    def plan() -> Iterator[Step]:
        for number in range(10**9):
            if number == 1:  # the step before fills the queue
                full.set()
            yield step(number)

    with Prefetcher(plan(), CPU, ahead=1) as steps:
        wait_for_event(full)
        thread = steps._thread
        assert thread.is_alive()
    assert not thread.is_alive()


def test_prefetcher_close_does_not_wait_for_a_hanging_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.CLOSE_SECONDS", 0.05)
    started, release = threading.Event(), threading.Event()

    def plan() -> Iterator[Step]:
        started.set()
        release.wait(LIMIT_SECONDS)
        yield step(0)

    steps = Prefetcher(plan(), CPU)
    wait_for_event(started)
    start = time.monotonic()
    steps.__exit__()
    assert time.monotonic() - start < LIMIT_SECONDS / 2
    assert steps._thread.daemon  # so that it does not block the process's exit
    release.set()
    steps._thread.join(LIMIT_SECONDS)
    assert not steps._thread.is_alive()


def test_prefetcher_reports_waited_seconds_once() -> None:
    made = threading.Event()

    def plan() -> Iterator[Step]:
        time.sleep(0.2)
        yield step(0)
        yield step(1)
        made.set()
        time.sleep(0.3)
        yield step(2)

    with Prefetcher(plan(), CPU) as steps:
        next(steps)
        assert 0.1 < steps.take_waited() < LIMIT_SECONDS
        assert steps.take_waited() == 0
        wait_for_event(made)
        next(steps)
        next(steps)
        assert 0.1 < steps.take_waited() < LIMIT_SECONDS


def test_prefetcher_moves_tensors_to_the_device() -> None:
    """The meta device takes the same path as a GPU; its tensors have a shape and no data."""
    with Prefetcher(iter([step(4)]), torch.device("meta")) as steps:
        ((inputs, targets),) = next(steps).parts
    assert (inputs.device.type, targets.device.type, inputs.shape) == ("meta", "meta", (1,))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_prefetcher_copies_pinned_memory_to_a_gpu() -> None:
    plan = (Step(1, 1, n, ((torch.full((1 << 20,), n), torch.full((1,), n)),)) for n in range(100))
    with Prefetcher(plan, torch.device("cuda", 0), ahead=4) as steps:
        for number, each in enumerate(steps):
            ((inputs, targets),) = each.parts
            assert inputs.device.type == "cuda"
            assert (inputs == number).all()
            assert targets.item() == number
