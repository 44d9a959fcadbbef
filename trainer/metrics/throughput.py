"""Training speed between two log lines, MFU, and goodput.

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

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a checkpoint says of the time before it, in seconds; `began_at` since 1970, by the first host's clock."""

    useful_seconds: float
    total_seconds: float
    began_at: float

    def document(self) -> dict[str, float]:
        """For JSON; `read` takes it back."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, object]) -> Carried:
        """Raises ValueError that names the value that is no finite number, or negative."""
        values = {}
        for each in fields(cls):
            value = document.get(each.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"goodput.{each.name} is {value!r}; expected a number of seconds")
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"goodput.{each.name} is {value}; expected a number of seconds from 0 on")
            values[each.name] = float(value)
        return cls(**values)


class Goodput:
    """Counts from its making on, and what an earlier checkpoint carried. Make it when the process starts."""

    def __init__(
        self,
        carried: Carried | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._made = clock()
        self._carried = Carried(useful_seconds=0.0, total_seconds=0.0, began_at=wall())
        self._useful = 0.0
        # Of the steps since the last `add`: how many, since when, how long they stood still, the seconds that the last
        # of them ended after without that, and what one gave before them.
        self._running, self._since, self._stood, self._passed = 0, 0.0, 0.0, 0.0
        self._per_step: float | None = None
        self._stepped = False
        if carried is not None:
            self.go_on_from(carried)

    def go_on_from(self, carried: Carried) -> None:
        """The model was loaded from this checkpoint: what came before counts as it carries it."""
        self._carried = carried
        self._useful = 0.0
        self._running, self._stood = 0, 0.0

    def step(self) -> None:
        """A step is done, which the next `add` will count. The first one, which compiles, counts for nothing."""
        if self._stepped:
            self._running += 1
            self._passed = max(0.0, self._clock() - self._since - self._stood)
        else:
            self._stepped, self._since, self._stood = True, self._clock(), 0.0

    def stand(self, seconds: float) -> None:
        """The training stood still for so long between two steps or in one; the next `add` is told less it."""
        self._stood += seconds

    def add(self, useful_seconds: float) -> None:
        """The model learned for so long, in the steps since the last time."""
        self._useful += useful_seconds
        if self._running:
            self._per_step = useful_seconds / self._running
        self._running, self._since, self._stood = 0, self._clock(), 0.0

    def carried(self) -> Carried:
        """For the checkpoint of this moment: up to the last step, also where nobody has measured that yet.

        Steps since the last `add` count as those before it did, without their waits, and never as more than the time
        that they took without `stand`; before the first `add` that time is all there is.
        """
        useful = self._carried.useful_seconds + self._useful + self._unmeasured()
        return Carried(
            useful_seconds=useful, total_seconds=max(self._total(), useful), began_at=self._carried.began_at
        )

    def _unmeasured(self) -> float:
        if not self._running:
            return 0.0
        return self._passed if self._per_step is None else min(self._passed, self._running * self._per_step)

    def share(self) -> float:
        """0 to 1; 0 at the very beginning."""
        now = self.carried()
        return now.useful_seconds / now.total_seconds if now.total_seconds else 0.0

    def _total(self) -> float:
        # Pauses between trainings are known by the wall clock alone. Where that was set back, or another host's goes
        # behind, the seconds that were counted are a lower bound.
        counted = self._carried.total_seconds + (self._clock() - self._made)
        passed = self._wall() - self._carried.began_at
        return max(counted, passed, self._carried.useful_seconds + self._useful)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Steps that follow one another, as rank 0 saw them.

    `seconds` is their whole time; `samples` what all processes together trained on in it. Of the time
    `data_wait_seconds` went by waiting for input, `checkpoint_stall_seconds` by standing still for a checkpoint.
    """

    seconds: float
    samples: int
    data_wait_seconds: float = 0.0
    checkpoint_stall_seconds: float = 0.0

    @property
    def useful_seconds(self) -> float:
        """Seconds in which the model learned."""
        return max(0.0, self.seconds - self.data_wait_seconds - self.checkpoint_stall_seconds)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Rates of an interval: of all processes together, but for `mfu`, which is that of each GPU.

    `units` are what the workload counts (samples or tokens). The shares are of the interval's seconds, 0 to 1.
    """

    samples_per_second: float
    units_per_second: float
    data_wait_share: float
    checkpoint_stall_share: float
    mfu: float | None


def speed(
    interval: Interval,
    *,
    units_per_sample: int,
    flops_per_sample: float | None,
    processes: int,
    peak: float | None,
) -> Speed:
    """Rates of `interval`, trained by `processes` GPUs of `peak` FLOP/s each.

    `flops_per_sample` counts forward and backward pass. MFU is what the model needs, without what is computed twice,
    over what the GPUs could do (PaLM, https://arxiv.org/abs/2204.02311, appendix B); None where the one or the other
    is not known. Raises ValueError for an interval of no time.
    """
    if interval.seconds <= 0:
        raise ValueError(f"an interval of {interval.seconds} s has no speed; expected more than 0 s")
    samples = interval.samples / interval.seconds
    mfu = None
    if flops_per_sample is not None and peak is not None:
        mfu = samples * flops_per_sample / (processes * peak)
    return Speed(
        samples_per_second=samples,
        units_per_second=samples * units_per_sample,
        data_wait_share=interval.data_wait_seconds / interval.seconds,
        checkpoint_stall_share=interval.checkpoint_stall_seconds / interval.seconds,
        mfu=mfu,
    )


Precision = Literal["bf16", "fp16", "tf32"]


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense peaks of one GPU, in FLOP/s; None for a format that its tensor cores do not have."""

    bf16: float | None
    fp16: float
    tf32: float | None


_V100: Final = Peak(bf16=None, fp16=125e12, tf32=None)
_A100: Final = Peak(bf16=312e12, fp16=312e12, tf32=156e12)
_HOPPER: Final = Peak(bf16=989e12, fp16=989e12, tf32=494.5e12)

# The names are those that the driver gives (torch.cuda.get_device_name).
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
    """Dense peak in FLOP/s of the GPU of this name; None for another device or a format without a figure."""
    found = PEAKS.get(device)
    return getattr(found, precision, None) if found else None
