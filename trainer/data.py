"""Which process reads which samples, and a thread that loads the batches of the next steps while the device computes.

The position in the data is one number: how many samples all processes have used since the start of the run. A run that
resumes from it with another number of processes, or another batch size, repeats and skips no sample.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, Queue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.workloads import Split, Workload
from trainer.world import World

# A thread that reads from a disk that hangs is left behind after this time, not waited for.
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Step:
    """The part of one process in one step. `samples` are those of all processes, `end` is the position after the step.

    `parts` has inputs and targets of each micro-batch of this process. All processes have equally many; they are empty
    tensors if this process has no share.
    """

    epoch: int
    samples: int
    end: int
    parts: tuple[tuple[Tensor, Tensor], ...]


def training_steps(
    workload: Workload, cursor: Cursor, world: World, micro_batch: int, start: int, count: int
) -> Iterator[Step]:
    """Yield `count` steps from position `start`, with micro-batches of at most `micro_batch` samples."""
    position = start
    for _ in range(count):
        batch = cursor.batch(position)
        position = batch.end
        parts = _parts(workload, batch.indices, "train", world, micro_batch)
        yield Step(batch.epoch, len(batch.indices), position, parts)


def evaluation_steps(workload: Workload, world: World, micro_batch: int) -> Iterator[Step]:
    """Yield each test sample in exactly one process. All processes have equally many steps, with one part each."""
    count = workload.test_samples
    for start in range(0, count, micro_batch * world.size):
        end = min(start + micro_batch * world.size, count)
        indices = np.arange(start, end, dtype=np.int64)
        yield Step(0, len(indices), end, _parts(workload, indices, "test", world, micro_batch))


def _parts(
    workload: Workload, indices: Indices, split: Split, world: World, micro_batch: int
) -> tuple[tuple[Tensor, Tensor], ...]:
    pieces = micro_batches(indices, world.rank, world.size, micro_batch)
    return tuple(workload.batch(piece, split) for piece in pieces)


class Prefetcher(Iterator[Step]):
    """Load up to `ahead` steps in a thread, and give them with their tensors on `device`.

    For CUDA, the thread copies them to pinned memory, and `next` starts an asynchronous copy on the current stream.
    `next` raises the errors of `steps`. The end of a `with` statement stops the thread.
    """

    def __init__(self, steps: Iterator[Step], device: torch.device, ahead: int = 2) -> None:
        self._steps, self._device = steps, device
        self._ready: Queue[Step | BaseException] = Queue(ahead)
        self._closed = threading.Event()
        self._waited = 0.0
        self._thread = threading.Thread(target=self._run, name="input", daemon=True)
        self._thread.start()

    def __next__(self) -> Step:
        began = time.perf_counter()
        found = self._ready.get()
        self._waited += time.perf_counter() - began
        if isinstance(found, BaseException):
            self._ready.put(found)  # for the next call
            raise found
        return self._on_device(found)

    def take_waited(self) -> float:
        """Return the seconds that `next` has waited for data since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with suppress(Empty):
            while True:  # the thread may wait for a place
                self._ready.get_nowait()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            if self._device.type == "cuda":
                # Each thread has a current device, and pinned memory belongs to a CUDA context.
                torch.cuda.set_device(self._device)
            for step in self._steps:
                self._ready.put(self._pinned(step))
                if self._closed.is_set():
                    return
        except BaseException as error:  # `next` raises it
            end = error
        self._ready.put(end)

    def _pinned(self, step: Step) -> Step:
        if self._device.type != "cuda":
            return step
        return replace(step, parts=tuple((i.pin_memory(), t.pin_memory()) for i, t in step.parts))

    def _on_device(self, step: Step) -> Step:
        """Copy the step to the device, on the stream of the computation: the copy is small, compared with its work.

        PyTorch does not reuse freed pinned memory before its copy is done (ATen/core/CachingHostAllocator.h,
        record_event).
        """
        if self._device.type == "cpu":
            return step
        moved = (
            (i.to(self._device, non_blocking=True), t.to(self._device, non_blocking=True))
            for i, t in step.parts
        )
        return replace(step, parts=tuple(moved))


Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of all processes in one step. `end` is the position after them, `epoch` counts from 1."""

    epoch: int
    indices: Indices
    end: int


class Cursor:
    """The order of the samples, epoch after epoch, in steps of `batch_size`.

    The last batch of an epoch has the rest of the samples.
    """

    def __init__(self, samples: int, seed: int, batch_size: int) -> None:
        self.samples, self.seed, self.batch_size = samples, seed, batch_size
        # The order of the current epoch. For ten million samples it takes less than a second and 80 MB.
        self._order: tuple[int, Indices] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in a whole epoch."""
        return math.ceil(self.samples / self.batch_size)

    def batch(self, position: int) -> Batch:
        """Return the batch that begins at `position`."""
        passed, offset = divmod(position, self.samples)
        indices = self._epoch(passed + 1)[offset : offset + self.batch_size]
        return Batch(passed + 1, indices, position + len(indices))

    def _epoch(self, epoch: int) -> Indices:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.samples, self.seed, epoch)
        return self._order[1]


def epoch_order(count: int, seed: int, epoch: int) -> Indices:
    """Return the order of `count` samples in this epoch. It is the same in every process."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def share(indices: Indices, rank: int, world_size: int) -> Indices:
    """Return the indices of process `rank`. Each index goes to exactly one process.

    Shares differ by one at most and may be empty. So loss and accuracy are summed, and never averaged per process.
    """
    return indices[rank::world_size]


def micro_batches(indices: Indices, rank: int, world_size: int, maximum: int) -> list[Indices]:
    """Split the share of process `rank` into pieces of at most `maximum`, whose sizes differ by one at most.

    All processes have equally many pieces, also with an empty share: all take part in the weight exchange of a sharded
    model in each piece.
    """
    count = max(1, math.ceil(math.ceil(len(indices) / world_size) / maximum))
    return np.array_split(share(indices, rank, world_size), count)
