"""Each image is seen exactly once per epoch, at any world size and across changes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.shards import epoch_order, global_batches, shard

pytestmark = pytest.mark.unit

counts = st.integers(1, 300)
batch_sizes = st.integers(1, 70)
worlds = st.integers(1, 8)
seeds = st.integers(0, 2**63 - 1)


@given(counts, batch_sizes, worlds, seeds, st.integers(1, 50))
def test_all_processes_together_see_every_image_exactly_once(
    count: int, batch_size: int, world: int, seed: int, epoch: int
) -> None:
    seen = [
        index
        for batch in global_batches(epoch_order(count, seed, epoch), batch_size)
        for rank in range(world)
        for index in shard(batch, rank, world).tolist()
    ]
    assert sorted(seen) == list(range(count))


@given(counts, batch_sizes, worlds, seeds)
def test_a_step_takes_the_same_images_at_every_world_size(
    count: int, batch_size: int, world: int, seed: int
) -> None:
    for batch in global_batches(epoch_order(count, seed, 1), batch_size):
        shares = [shard(batch, rank, world) for rank in range(world)]
        assert sorted(np.concatenate(shares).tolist()) == sorted(batch.tolist())
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


@given(counts, batch_sizes, st.lists(worlds, min_size=1, max_size=4), seeds)
def test_going_on_with_another_number_of_processes_repeats_and_skips_nothing(
    count: int, batch_size: int, sizes: list[int], seed: int
) -> None:
    order = epoch_order(count, seed, 1)
    seen: list[int] = []
    for number, world in enumerate(sizes):
        batches = global_batches(order, batch_size, start=len(seen))
        for done, batch in enumerate(batches):
            if done == 2 and number < len(sizes) - 1:  # stopped after two steps; the last one goes to the end
                break
            seen += [index for rank in range(world) for index in shard(batch, rank, world).tolist()]
    assert sorted(seen) == list(range(count))


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    first = epoch_order(100, 1, 1).tolist()
    assert first == epoch_order(100, 1, 1).tolist()
    assert first != epoch_order(100, 1, 2).tolist()
    assert first != epoch_order(100, 2, 1).tolist()
