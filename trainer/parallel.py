"""Distribute a model with DDP (replicated) or FSDP2 (sharded), and choose its compilation and its precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.distributed import together
from trainer.process import log_line
from trainer.world import World


def distribute(
    network: nn.Module,
    *,
    sharded: bool,
    compiled: bool,
    precision: Precision,
    device: torch.device,
    bucket_megabytes: int,
) -> nn.Module:
    """Return the model that the loop calls. It has the weights of `network`, which is already on `device`.

    DDP averages gradients in buckets of `bucket_megabytes` during the backward pass. With `sharded`, each process holds
    its part of each block (`_find_blocks`) and of the rest. A single process needs neither.
    """
    if sharded:
        blocks = _find_blocks(network)
        if compiled:
            _compile_parts(network, blocks)
        # This import takes a second in every process. So `accumulating` checks methods instead of classes.
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(network, mesh=mesh, mp_policy=policy)
        return network
    # torch splits the graph at DDP's buckets, so that they are exchanged during the backward pass. There is a graph for
    # each batch size. There are few sizes, and a dynamic graph would make the usual one slower.
    model: nn.Module = torch.compile(network, dynamic=False) if compiled else network  # type: ignore[assignment]
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_megabytes,
            gradient_as_bucket_view=True,
        )
    return model


def _find_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the modules in `network.blocks`, an nn.ModuleList or nn.Sequential, that FSDP2 can shard separately.

    The others stay in the unit of the rest: modules without parameters, modules without `forward`, where the hooks of
    FSDP2 run, and modules that share a parameter with another one or occur twice.
    """
    blocks = getattr(network, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        return []
    uses, found = _count_parameters(network), []
    for block in blocks:
        own = _count_parameters(block)
        has_forward = type(block).forward is not nn.Module.forward
        if own and has_forward and all(uses[each] == count for each, count in own.items()):
            found.append(block)
    return found


def _count_parameters(module: nn.Module) -> Counter[nn.Parameter]:
    """Return how often each parameter occurs in a module."""
    return Counter(each for _, each in module.named_parameters(remove_duplicate=False))


def _compile_parts(network: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Compile each of `blocks` and `compute_loss` separately, or the whole network if it has no blocks.

    The hooks of FSDP2 around a block, which gather and free its weights, can't be in a graph, and would break the graph
    of a whole network. So only `forward` is compiled, inside the hooks. Equal blocks share one graph
    (github.com/pytorch/torchtitan, `apply_compile` in models/llama3/infra/parallelize.py).
    """
    model: Any = network
    for part in blocks or (model,):
        part.forward = torch.compile(part.forward, dynamic=False)
    if hasattr(model, "compute_loss"):
        model.compute_loss = torch.compile(model.compute_loss, dynamic=False)


def is_compiled(config: Config, world: World, device: torch.device) -> bool:
    """Return whether to compile the model. All processes of the run return the same value.

    Raises:
        TrainerError: torch.compile does not work, and the user set `--compile yes`.
    """
    if config.compile == "no" or (config.compile == "auto" and device.type != "cuda"):
        return False
    return can_compile(config, world, device)


def can_compile(config: Config, world: World, device: torch.device) -> bool:
    """Compile a small function before the first step, and return whether that works in all processes.

    torch.compile needs a C compiler, Python's headers, a cache directory and a user name, all of the image. A run would
    otherwise fail in its first step, restart on the same image and fail again.

    Raises:
        TrainerError: It does not work, and the user set `--compile yes`.
    """

    def small(values: Tensor) -> Tensor:
        return values.sin() + 1

    def find_problem() -> str:
        try:
            torch.compile(small, dynamic=False)(torch.ones(8, device=device)).sum().item()
        except Exception as error:  # errors of Triton, of the compiler or of the file system
            problem = (
                f"torch.compile does not work here: {first_line_of_cause(error)}. "
                "Give the image a C compiler with Python's headers, or train with --compile no"
            )
            if config.compile == "yes":
                raise TrainerError(Exit.CONFIGURATION, f"compile: {problem}") from error
            return problem
        return ""

    problem = together(find_problem, device)
    if problem and world.local_rank == 0:
        log_line(f"compile=no rank={world.rank} reason={problem}")
    works = torch.tensor(0 if problem else 1, device=device)
    dist.all_reduce(works, op=dist.ReduceOp.MIN)
    return bool(works.item())


@contextmanager
def report_compile_errors() -> Iterator[None]:
    """Raise a failed compilation of the model as TrainerError: after a restart, it would fail again."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        message = f"compile: torch.compile failed for this model: {first_line_of_cause(error)}. Train with --compile no"
        raise TrainerError(Exit.CONFIGURATION, message) from error


def first_line_of_cause(error: BaseException) -> str:
    """Return the first line of the original exception in the chain of `error`."""
    original = error
    while (earlier := original.__cause__ or original.__context__) is not None:
        original = earlier
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    return (lines[0] if lines else type(original).__name__).rstrip(".")


@contextmanager
def accumulating(model: nn.Module, last: bool) -> Iterator[None]:
    """Run one of several backward passes of a step. Only the last one exchanges gradients."""
    if isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
        return
    sharded: Any = model
    if hasattr(sharded, "set_requires_gradient_sync"):  # FSDP2
        sharded.set_requires_gradient_sync(last)
        sharded.set_is_last_backward(last)
    yield


# Tensor cores support bfloat16 from compute capability 8.0, Ampere
# (https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Features and Technical Specifications").
BF16_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True)
class Precision:
    """The dtype of autocast (None: float32 as the weights), and whether it needs a gradient scaler."""

    name: str
    dtype: torch.dtype | None
    scaled: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Compute forward passes in this precision. Weights, gradients and optimizer stay in float32."""
        return torch.autocast(device.type, self.dtype) if self.dtype else nullcontext()


BF16: Final = Precision("bf16", torch.bfloat16)
# Gradients below 6e-8 are zero in float16. So they are scaled up for the backward pass, and down before the step.
FP16: Final = Precision("fp16", torch.float16, scaled=True)
FP32: Final = Precision("fp32", None)


def choose(wanted: str, kind: str, name: str = "", capability: tuple[int, int] = (0, 0)) -> Precision:
    """Return the precision for a device of this kind (cpu, cuda), with the name and compute capability of a GPU.

    `auto` is bf16 on GPUs that support it, fp16 on other GPUs, and fp32 on the CPU.

    Raises:
        TrainerError: The device does not support the precision.
    """
    if wanted == "auto":
        return FP32 if kind == "cpu" else BF16 if capability >= BF16_CAPABILITY else FP16
    if wanted == "fp16" and kind == "cpu":
        raise TrainerError(
            Exit.CONFIGURATION,
            "precision: fp16 needs a GPU, and this run is on the CPU. Use fp32 or bf16",
        )
    if wanted == "bf16" and kind == "cuda" and capability < BF16_CAPABILITY:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"precision: bf16 needs compute capability 8.0 (A10G, A100, H100); {name} has "
            f"{capability[0]}.{capability[1]}. Use fp16, fp32 or auto",
        )
    return {"bf16": BF16, "fp16": FP16, "fp32": FP32}[wanted]


def check_build(name: str, capability: tuple[int, int], built: list[str]) -> None:
    """Check that this build of torch supports a GPU of this compute capability.

    `built` is `torch.cuda.get_arch_list()`: sm_XY runs on capability X.Z with Z >= Y, and the driver compiles
    compute_XY for each later one (https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Binary Compatibility").

    Raises:
        TrainerError: It does not. The first kernel would fail with "no kernel image is available".
    """
    for arch in built:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("af")
        if not digits.isdecimal():
            continue
        target = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and target[0] == capability[0] and target[1] <= capability[1]:
            return
        if kind == "compute" and target <= capability:
            return
    raise TrainerError(
        Exit.NO_CUDA,
        f"device: {name} has compute capability {capability[0]}.{capability[1]}, and torch {torch.__version__} is "
        f"built for {', '.join(built) or 'no GPU'}. Use an image whose torch has "
        f"sm_{capability[0]}{capability[1]}",
    )


def set_precision(wanted: str, device: torch.device) -> Precision:
    """Return the precision for this device, and allow TF32 in float32 products. Raise TrainerError."""
    if device.type == "cpu":
        return choose(wanted, device.type)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    check_build(name, capability, torch.cuda.get_arch_list())
    torch.set_float32_matmul_precision("high")
    return choose(wanted, device.type, name, capability)
