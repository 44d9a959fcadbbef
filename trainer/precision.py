"""The kind of numbers that a training computes with, by what its device can do."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import torch

from trainer.contract import Exit, TrainerError

# bfloat16's matrix units came with compute capability 8.0, Ampere
# (https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Features and Technical Specifications").
BF16_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True)
class Precision:
    """What autocast computes in (None: the weights' own float32), and whether gradients need a scaler for it."""

    name: str
    dtype: torch.dtype | None
    scaled: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Forward passes inside compute in this precision; weights, gradients and optimizer stay in float32."""
        return torch.autocast(device.type, self.dtype) if self.dtype else nullcontext()


BF16: Final = Precision("bf16", torch.bfloat16)
# Gradients below 6e-8 are zero in float16: they are scaled up for the backward pass, and down before the step.
FP16: Final = Precision("fp16", torch.float16, scaled=True)
FP32: Final = Precision("fp32", None)


def choose(wanted: str, kind: str, name: str = "", capability: tuple[int, int] = (0, 0)) -> Precision:
    """The precision for a device of this kind (cpu, cuda); of a GPU its name and compute capability count.

    `auto` is bf16 where the GPU has it, fp16 where it has not, and fp32 on the CPU. Raises TrainerError
    for one that the device does badly or not at all.
    """
    if wanted == "auto":
        return FP32 if kind == "cpu" else BF16 if capability >= BF16_CAPABILITY else FP16
    if wanted == "fp16" and kind == "cpu":
        raise TrainerError(
            Exit.CONFIGURATION,
            "precision: fp16 needs a GPU, and this training is on the CPU; expected fp32 or bf16",
        )
    if wanted == "bf16" and kind == "cuda" and capability < BF16_CAPABILITY:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"precision: bf16 needs compute capability 8.0 (A10G, A100, H100); {name} has "
            f"{capability[0]}.{capability[1]}; expected fp16, fp32 or auto",
        )
    return {"bf16": BF16, "fp16": FP16, "fp32": FP32}[wanted]


def check_build(name: str, capability: tuple[int, int], built: list[str]) -> None:
    """Raises TrainerError when this build of torch holds no code for a GPU of that compute capability.

    `built` is what `torch.cuda.get_arch_list()` says: sm_XY runs on capability X.Z with Z >= Y, compute_XY is compiled
    by the driver for every later one (https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Binary Compatibility").
    Without this line the training would end at its first kernel with "no kernel image is available".
    """
    for arch in built:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("af")
        if not digits.isdecimal():
            continue
        own = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and own[0] == capability[0] and own[1] <= capability[1]:
            return
        if kind == "compute" and own <= capability:
            return
    raise TrainerError(
        Exit.NO_CUDA,
        f"device: {name} has compute capability {capability[0]}.{capability[1]}, and torch {torch.__version__} is "
        f"built for {', '.join(built) or 'no GPU'}; expected an image whose torch has "
        f"sm_{capability[0]}{capability[1]}",
    )


def prepare(wanted: str, device: torch.device) -> Precision:
    """The precision of a training on this device. Allows TF32 in what stays float32. Raises TrainerError."""
    if device.type == "cpu":
        return choose(wanted, device.type)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    check_build(name, capability, torch.cuda.get_arch_list())
    torch.set_float32_matmul_precision("high")
    return choose(wanted, device.type, name, capability)
