"""The speed of the steps, MFU and goodput.

Goodput is the share of the time since the start of a run in which the model learned what it still knows. Each
checkpoint contains the seconds that it took to compute. A run that resumes from it has lost the later work: its seconds
count as time, but not as goodput. The same holds for the pause between two attempts, start, compilation, evaluation,
and waits for data and checkpoints.

MFU divides by the highest rate of dense matrix products that the GPU's vendor states, in floating-point operations per
second (a multiply-add is two). Where the vendor prints rates with sparsity, the table has half of them. The rates are
for GPUs as EC2 has them: the PCIe and NVL forms of A100, H100 and H200 have other names and rates. A GPU without an
entry has no MFU. The RTX PRO 6000 of g7e has no entry, because its data sheet only gives rounded figures with sparsity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The steps between two log lines: their samples and seconds, and how long they waited for data and checkpoints."""

    samples: int
    seconds: float
    data_wait_seconds: float
    stall_seconds: float


class StepClock:
    """Measure the laps of a training loop. `take_waited` returns the seconds of waits for data since its last call."""

    def __init__(
        self, take_waited: Callable[[], float], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._take_waited, self._clock = take_waited, clock
        self._began, self._samples, self._stalled = clock(), 0, 0.0

    def add(self, samples: int) -> None:
        """Add a step."""
        self._samples += samples

    def stall(self, seconds: float) -> None:
        """Add a wait for a checkpoint."""
        self._stalled += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the body."""
        began = self._clock()
        yield
        self._began += self._clock() - began

    def lap(self) -> Lap:
        """End a lap, and begin the next one."""
        now = self._clock()
        lap = Lap(
            samples=self._samples,
            seconds=now - self._began,
            data_wait_seconds=self._take_waited(),
            stall_seconds=self._stalled,
        )
        self._began, self._samples, self._stalled = now, 0, 0.0
        return lap


@dataclass(frozen=True, kw_only=True)
class Carried:
    """The times before a checkpoint, in seconds.

    `began_at` is the time of the checkpoint less `total_seconds`, since 1970 by the clock of the first host.
    """

    useful_seconds: float
    total_seconds: float
    began_at: float


class Goodput:
    """Measure the goodput since the creation of this object, with the times before a checkpoint."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall = clock, wall
        self._made, self._made_at = clock(), wall()
        self._carried = Carried(useful_seconds=0.0, total_seconds=0.0, began_at=self._made_at)
        self._gap = 0.0  # between the checkpoint that was loaded and the creation of this object
        self._useful = 0.0
        # Of the steps since the last `add`: their number, their start, their pauses, and the time until the end of the
        # last one without pauses. `_per_step` is the useful time per step before them.
        self._running, self._since, self._stalled, self._passed = 0, 0.0, 0.0, 0.0
        self._per_step: float | None = None
        self._stepped = False

    def resume_from(self, carried: Carried) -> None:
        """Continue with the times of a checkpoint that was loaded.

        Only the wall clock has the time between two attempts. If it was set back, or is behind the clock of another
        host, no time passed between them.
        """
        self._carried = carried
        self._gap = max(0.0, self._made_at - (carried.began_at + carried.total_seconds))
        self._useful = 0.0
        self._running, self._stalled = 0, 0.0

    def step(self) -> None:
        """Count a step for the next `add`. The first step, which compiles, does not count."""
        if self._stepped:
            self._running += 1
            self._passed = max(0.0, self._clock() - self._since - self._stalled)
        else:
            self._stepped, self._since, self._stalled = True, self._clock(), 0.0

    def pause(self, seconds: float) -> None:
        """Count a pause of training. The next `add` does not include it."""
        self._stalled += seconds

    def add(self, useful_seconds: float) -> None:
        """Add the useful time of the steps since the last `add`."""
        self._useful += useful_seconds
        if self._running:
            self._per_step = useful_seconds / self._running
        self._running, self._since, self._stalled = 0, self._clock(), 0.0

    def carried(self) -> Carried:
        """Return the times for a checkpoint now, with an estimate for the steps since the last `add`.

        These steps count as much as the steps before them, but not more than their time without pauses. Before the
        first `add`, that time counts.
        """
        useful = self._carried.useful_seconds + self._useful + self._unmeasured()
        total = max(self._total(), useful)
        return Carried(useful_seconds=useful, total_seconds=total, began_at=self._wall() - total)

    def _unmeasured(self) -> float:
        if not self._running:
            return 0.0
        return self._passed if self._per_step is None else min(self._passed, self._running * self._per_step)

    def share(self) -> float:
        """Return the goodput, 0 to 1."""
        now = self.carried()
        return now.useful_seconds / now.total_seconds if now.total_seconds else 0.0

    def _total(self) -> float:
        counted = self._carried.total_seconds + self._gap + (self._clock() - self._made)
        return max(counted, self._carried.useful_seconds + self._useful)


def mfu(samples_per_second: float, flops_per_sample: float, processes: int, peak: float) -> float:
    """Return the FLOPs of the model, without recomputation, over the peak of all GPUs.

    Source: PaLM (https://arxiv.org/abs/2204.02311), appendix B. `flops_per_sample` counts the forward and the backward
    pass, and `samples_per_second` the samples of all processes.
    """
    return samples_per_second * flops_per_sample / (processes * peak)


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense peaks of one GPU, in FLOP/s; None for a format that its tensor cores do not support."""

    bf16: float | None
    fp16: float
    tf32: float | None


_V100: Final = Peak(bf16=None, fp16=125e12, tf32=None)
_A100: Final = Peak(bf16=312e12, fp16=312e12, tf32=156e12)
_HOPPER: Final = Peak(bf16=989e12, fp16=989e12, tf32=494.5e12)

# By the name of the driver (torch.cuda.get_device_name).
PEAKS: Final[dict[str, Peak]] = {
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    "Tesla T4": Peak(bf16=None, fp16=65e12, tf32=None),
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    "Tesla V100-SXM2-16GB": _V100,
    "Tesla V100-SXM2-32GB": _V100,
    # https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf; its tensor cores
    # are slower than those of the A10, which has 125e12.
    "NVIDIA A10G": Peak(bf16=70e12, fp16=70e12, tf32=35e12),
    # https://www.nvidia.com/en-us/data-center/l4/
    "NVIDIA L4": Peak(bf16=121e12, fp16=121e12, tf32=60e12),
    # https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
    "NVIDIA L40S": Peak(bf16=362e12, fp16=362e12, tf32=183e12),
    # https://www.nvidia.com/en-us/data-center/a100/
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    # https://www.nvidia.com/en-us/data-center/h100/ and https://www.nvidia.com/en-us/data-center/h200/
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H200": _HOPPER,
    # https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703, HGX B200, one GPU
    "NVIDIA B200": Peak(bf16=2250e12, fp16=2250e12, tf32=1100e12),
    # https://www.nvidia.com/en-us/data-center/hgx/, HGX B300, an eighth of the board
    "NVIDIA B300 SXM6 AC": Peak(bf16=2250e12, fp16=2250e12, tf32=1125e12),
}


def peak(device: str, precision: str) -> float | None:
    """Return the dense peak of a GPU in FLOP/s; None for an unknown device or format."""
    found = PEAKS.get(device)
    return getattr(found, precision, None) if found else None
