"""Each sample is seen exactly once per epoch, at any world size and across changes of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import data
from trainer.data import Cursor, epoch_order, micro_batches

counts = st.integers(1, 100)
batch_sizes = st.integers(1, 40)
worlds = st.integers(1, 8)
seeds = st.integers(0, 2**63 - 1)


def seen_by_all(indices: np.ndarray, world: int, maximum: int) -> list[int]:
    """What the processes of a world use of a global batch, by way of shares and micro-batches."""
    return [
        index
        for rank in range(world)
        for part in micro_batches(indices, rank, world, maximum)
        for index in part.tolist()
    ]


@given(counts, batch_sizes, worlds, seeds, st.integers(1, 9), st.integers(0, 3))
def test_cursor_reads_each_sample_once_per_epoch(
    count: int, batch_size: int, world: int, seed: int, maximum: int, epoch: int
) -> None:
    order, position, seen = Cursor(count, seed, batch_size), epoch * count, list[int]()
    for _ in range(order.steps_per_epoch):
        batch = order.batch(position)
        assert batch.epoch == epoch + 1
        seen += seen_by_all(batch.indices, world, maximum)
        position = batch.end
    assert sorted(seen) == list(range(count))
    assert position == (epoch + 1) * count


@given(counts, seeds, st.lists(st.tuples(worlds, batch_sizes, st.integers(1, 9)), min_size=1, max_size=5))
def test_resume_at_another_world_size_repeats_and_skips_nothing(
    count: int, seed: int, lives: list[tuple[int, int, int]]
) -> None:
    position, seen = 0, Counter[int]()
    for world, batch_size, steps in [*lives, (1, 1, 0)]:
        order = Cursor(count, seed, batch_size)  # a new process: nothing but the position is carried over
        for _ in range(steps):
            batch = order.batch(position)
            seen.update(seen_by_all(batch.indices, world, 3))
            position = batch.end
    epochs, rest = divmod(position, count)
    expected = Counter(dict.fromkeys(range(count), epochs)) + Counter(
        epoch_order(count, seed, epochs + 1)[:rest].tolist()
    )
    assert seen == expected


@given(st.integers(0, 100), worlds, st.integers(1, 20))
def test_micro_batches_are_few_equal_and_as_many_in_all_ranks(count: int, world: int, maximum: int) -> None:
    parts = [micro_batches(np.arange(count), rank, world, maximum) for rank in range(world)]
    largest = -(-count // world)
    for rank, own in enumerate(parts):
        assert np.concatenate(own).tolist() == list(range(count))[rank::world]
        sizes = [len(part) for part in own]
        assert max(sizes) <= maximum
        assert max(sizes) - min(sizes) <= 1
        assert len(own) == max(1, -(-largest // maximum))


def test_an_epochs_order_is_made_once_and_not_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(count: int, seed: int, epoch: int) -> np.ndarray:
        made.append(epoch)
        return epoch_order(count, seed, epoch)

    monkeypatch.setattr(data, "epoch_order", counted)
    order, position = Cursor(100, 0, 7), 0
    while position < 300:
        position = order.batch(position).end
    assert made == [1, 2, 3]


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    first = epoch_order(100, 1, 1).tolist()
    assert first == epoch_order(100, 1, 1).tolist()
    assert first != epoch_order(100, 1, 2).tolist()
    assert first != epoch_order(100, 2, 1).tolist()


def test_the_order_is_the_one_that_it_has_always_been() -> None:
    """A numpy that shuffles otherwise (NEP 19 allows it) would make runs that go on repeat and skip samples."""
    assert epoch_order(10, 0, 1).tolist() == [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]
    assert epoch_order(10, 2**63 - 1, 7).tolist() == [8, 1, 3, 5, 4, 0, 7, 2, 9, 6]
