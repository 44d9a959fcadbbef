"""Which process sees which image. Pure, and free of the world size up to the last step.

The position in the data is one number: how many images of the epoch's order have been used by all processes together.
A run that goes on with another number of processes from the same position repeats and skips no image.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def epoch_order(count: int, seed: int, epoch: int) -> Indices:
    """The order of `count` images in this epoch: the same in every process."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def global_batches(order: Indices, batch_size: int, start: int = 0) -> Iterator[Indices]:
    """Consecutive pieces of `batch_size` from position `start`; the last one is what is left, never filled up."""
    for position in range(start, len(order), batch_size):
        yield order[position : position + batch_size]


def shard(indices: Indices, rank: int, world_size: int) -> Indices:
    """What process `rank` takes of these indices: each index goes to exactly one process.

    Shares differ by one at most and may be empty, so that loss and accuracy are summed, never averaged per process.
    """
    return indices[rank::world_size]
