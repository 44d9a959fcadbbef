"""One model on many processes: its precision, and DDP (replicated) or FSDP2 (sharded)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from trainer.contract import Exit, TrainerError


def distribute(
    network: nn.Module,
    *,
    sharded: bool,
    compiled: bool,
    precision: Precision,
    device: torch.device,
    bucket_megabytes: int,
) -> nn.Module:
    """The model that the loop calls; its weights are `network`'s, which stands on `device` already.

    DDP averages gradients in buckets of `bucket_megabytes` while the backward pass still runs. Sharded, each process
    keeps its part of each of `network.blocks`, where it has some, and of the rest. One process alone needs neither.
    """
    if sharded:
        if compiled:
            _compile_parts(network)
        # Imported here, and its classes known by their methods below: it takes a second, in every process.
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in getattr(network, "blocks", ()):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(network, mesh=mesh, mp_policy=policy)
        return network
    # torch cuts the graph at DDP's buckets, so that they are exchanged while the backward pass still runs. There is a
    # graph for each size of batch, and these are few: in a graph for all of them the usual one would be slower.
    model: nn.Module = torch.compile(network, dynamic=False) if compiled else network  # type: ignore[assignment]
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_megabytes,
            gradient_as_bucket_view=True,
        )
    return model


def _compile_parts(network: nn.Module) -> None:
    """Compile each of `network.blocks` and its loss (`judge`) by itself, the network as a whole where it has none.

    What FSDP2 does before and after a block (fetch its weights, drop them) can be in no graph: compiled as a whole, a
    network falls to pieces there. Compiled is `forward` alone, which those hooks stand around; blocks that are alike
    share one graph (github.com/pytorch/torchtitan, `apply_compile` in models/llama3/infra/parallelize.py).
    """
    model: Any = network
    for part in getattr(model, "blocks", None) or (model,):
        part.forward = torch.compile(part.forward, dynamic=False)
    if hasattr(model, "judge"):
        model.judge = torch.compile(model.judge, dynamic=False)


@contextmanager
def accumulating(model: nn.Module, last: bool) -> Iterator[None]:
    """One of several backward passes of a step: only the last one exchanges gradients."""
    if isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
        return
    sharded: Any = model
    if hasattr(sharded, "set_requires_gradient_sync"):  # FSDP2's, compiled or not
        sharded.set_requires_gradient_sync(last)
        sharded.set_is_last_backward(last)
    yield


def whole(tensor: Tensor) -> Tensor:
    """A parameter as one tensor, also where each process has a part of it: called by all processes together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


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
