"""How fast training went between two lines of log. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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
