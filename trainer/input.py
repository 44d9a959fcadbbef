"""The next steps' samples, made by a thread while the device is at work on this one's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from trainer.cursor import Cursor, Indices, micro_batches
from trainer.workloads import Split, Workload
from trainer.world import World

# A thread that reads from a disk that hangs is left behind after this time, not waited for.
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Step:
    """One process's part of one step.

    `samples` are those of all processes together, `end` is the position after them. `parts` are inputs and targets of
    this process's micro-batches, as many as any other's; they are empty when the process has no share.
    """

    epoch: int
    samples: int
    end: int
    parts: tuple[tuple[Tensor, Tensor], ...]


def training_steps(
    workload: Workload, cursor: Cursor, world: World, micro_batch: int, start: int, count: int
) -> Iterator[Step]:
    """`count` steps from position `start` on, each process's share in pieces of at most `micro_batch` samples."""
    position = start
    for _ in range(count):
        batch = cursor.batch(position)
        position = batch.end
        parts = _parts(workload, batch.indices, "train", world, micro_batch)
        yield Step(batch.epoch, len(batch.indices), position, parts)


def evaluation_steps(workload: Workload, world: World, micro_batch: int) -> Iterator[Step]:
    """Every test sample in exactly one process. All processes have the same number of steps, one part in each."""
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
    """`steps`, made up to `ahead` steps before they are wanted, with their tensors on `device`.

    For CUDA the thread puts them into pinned memory and `next` begins their copy on the current stream, which nobody
    waits for. What `steps` raises, `next` raises in its place. Closed by `close` or at the end of a `with`.
    """

    def __init__(self, steps: Iterator[Step], device: torch.device, ahead: int = 2) -> None:
        if ahead < 1:
            raise ValueError(f"{ahead} steps ahead; expected at least 1")
        self._steps, self._device, self._ahead = steps, device, ahead
        self._ready: deque[Step] = deque()
        self._over, self._closed = False, False
        self._error: BaseException | None = None
        self._waited = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="input", daemon=True)
        self._thread.start()

    def __next__(self) -> Step:
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._over or self._closed)
            self._waited += time.perf_counter() - began
            if self._closed:
                raise RuntimeError("the input was closed")
            if not self._ready:
                if self._error is not None:
                    raise self._error
                raise StopIteration
            step = self._ready.popleft()
            self._changed.notify_all()
        return self._on_device(step)

    def take_waited(self) -> float:
        """Seconds that `next` has waited for data since this was last asked."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Stop the thread; what it has made is dropped. A second call does nothing."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(
                    self._device
                )  # each thread has its own; pinned memory belongs to a context
            for step in self._steps:
                made = self._pinned(step)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ready) < self._ahead or self._closed)
                    if self._closed:
                        return
                    self._ready.append(made)
                    self._changed.notify_all()
        except BaseException as error:  # the loop's to know of, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _pinned(self, step: Step) -> Step:
        if self._device.type != "cuda":
            return step
        return replace(step, parts=tuple((i.pin_memory(), t.pin_memory()) for i, t in step.parts))

    def _on_device(self, step: Step) -> Step:
        """The copies run on the stream of the step itself: a few hundred kilobytes against milliseconds of work.

        Pinned memory that is freed meanwhile is not used again before its copy is done: PyTorch's allocator of pinned
        memory sees to that (ATen/core/CachingHostAllocator.h, record_event).
        """
        if self._device.type == "cpu":
            return step
        moved = (
            (i.to(self._device, non_blocking=True), t.to(self._device, non_blocking=True))
            for i, t in step.parts
        )
        return replace(step, parts=tuple(moved))
