"""The highest rate of matrix products of each GPU, as its vendor states it: what model FLOPs utilisation divides by.

All figures are dense, in floating-point operations per second (a multiply-add is two); where the vendor prints them
with sparsity, the half of it stands here. They hold for GPUs in the form in which EC2 has them: the PCIe and NVL forms
of A100, H100 and H200 are other machines with other names. A GPU that is not in the table has no utilisation: none is
guessed. The RTX PRO 6000 of g7e is left out because its data sheet gives rounded figures with sparsity alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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
