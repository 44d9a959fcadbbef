"""Which process sees which sample. Pure, and free of the world size up to the last step.

The position in the data is one number: how many samples all processes together have used since the start of the run. A
run that goes on from it with another number of processes, or another batch size, repeats and skips no sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """What all processes together use in one step: samples `indices`, in the order of the epoch (from 1)."""

    epoch: int
    indices: Indices
    end: int  # the position after it


class Cursor:
    """The order of `samples` samples, epoch after epoch, in steps of `batch_size`.

    An epoch's last batch is what is left, never filled up. Raises ValueError for sizes below 1.
    """

    def __init__(self, samples: int, seed: int, batch_size: int) -> None:
        if samples < 1 or batch_size < 1:
            raise ValueError(f"{samples} samples in batches of {batch_size}; expected at least 1 and 1")
        self.samples, self.seed, self.batch_size = samples, seed, batch_size
        # The order of one epoch, made once: ten million samples take a part of a second and 80 MB.
        self._order: tuple[int, Indices] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch that is begun at its start."""
        return math.ceil(self.samples / self.batch_size)

    def batch(self, position: int) -> Batch:
        """The step that begins at `position`. Raises ValueError below 0."""
        if position < 0:
            raise ValueError(f"position {position}; expected at least 0")
        passed, offset = divmod(position, self.samples)
        indices = self._epoch(passed + 1)[offset : offset + self.batch_size]
        return Batch(passed + 1, indices, position + len(indices))

    def _epoch(self, epoch: int) -> Indices:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.samples, self.seed, epoch)
        return self._order[1]


def epoch_order(count: int, seed: int, epoch: int) -> Indices:
    """The order of `count` samples in this epoch: the same in every process."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def share(indices: Indices, rank: int, world_size: int) -> Indices:
    """What process `rank` takes of these indices: each index goes to exactly one process.

    Shares differ by one at most and may be empty, so that loss and accuracy are summed, never averaged per process.
    """
    return indices[rank::world_size]


def micro_batches(indices: Indices, rank: int, world_size: int, most: int) -> list[Indices]:
    """The share of process `rank` in pieces of at most `most`, whose sizes differ by one at most.

    Every process has as many pieces, the one with an empty share, too: a sharded model exchanges weights in each, and
    all take part in that.
    """
    count = max(1, math.ceil(math.ceil(len(indices) / world_size) / most))
    return np.array_split(share(indices, rank, world_size), count)
