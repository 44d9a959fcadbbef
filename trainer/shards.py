"""Which process sees which image, by the names that the loop in train.py knows; their home is `trainer.cursor`."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.cursor import Indices, share
from trainer.cursor import epoch_order as epoch_order

shard = share


def global_batches(order: Indices, batch_size: int, start: int = 0) -> Iterator[Indices]:
    """Consecutive pieces of `batch_size` from position `start`; the last one is what is left, never filled up."""
    for position in range(start, len(order), batch_size):
        yield order[position : position + batch_size]
