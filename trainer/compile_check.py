"""Check once, before the first step, whether torch.compile works in this environment.

torch.compile needs a C compiler, Python's headers, a cache directory and a user name, all of the image. Without this
check, a run would fail in its first step, restart on the same image and fail again. The entry point is `is_compiled`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.distributed import together
from trainer.process import log_line
from trainer.world import World

_ADVICE = "Give the image a C compiler with Python's headers, or train with --compile no"


def is_compiled(config: Config, world: World, device: torch.device) -> bool:
    """Return whether to compile the model. All processes of the run return the same value.

    Raises:
        TrainerError: The user set `--compile yes`, and torch.compile does not work here.
    """
    if not is_requested(config, device):
        return False
    reason = together(lambda: find_problem(config, device), device)
    if reason and world.local_rank == 0:
        log_line(f"compile=no rank={world.rank} reason=torch.compile does not work here: {reason}. {_ADVICE}")
    works = torch.tensor(0 if reason else 1, device=device)
    dist.all_reduce(works, op=dist.ReduceOp.MIN)
    return bool(works.item())


def is_requested(config: Config, device: torch.device) -> bool:
    """Return whether the settings request compilation on this device."""
    return config.compile == "yes" or (config.compile == "auto" and device.type == "cuda")


def find_problem(config: Config, device: torch.device) -> str:
    """Return why torch.compile does not work, "" if it works.

    Raises:
        TrainerError: It does not work, and the user set `--compile yes`.
    """
    reason = try_compile(device)
    if reason and config.compile == "yes":
        raise TrainerError(
            Exit.CONFIGURATION, f"compile: torch.compile does not work here: {reason}. {_ADVICE}"
        )
    return reason


def try_compile(device: torch.device) -> str:
    """Return in one line why a small function can't be compiled for the device; "" if it can."""
    try:
        torch.compile(_small, dynamic=False)(torch.ones(8, device=device)).sum().item()
    except Exception as error:  # errors of Triton, of the compiler or of the file system
        return first_line_of_cause(error)
    return ""


def _small(values: Tensor) -> Tensor:
    return values.sin() + 1


def first_line_of_cause(error: BaseException) -> str:
    """Return the first line of the original exception in the chain of `error`."""
    original = error
    while (earlier := original.__cause__ or original.__context__) is not None:
        original = earlier
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    return (lines[0] if lines else type(original).__name__).rstrip(".")


@contextmanager
def report_compile_errors() -> Iterator[None]:
    """Report a failed compilation of the model as a configuration error.

    A restart would fail again, because code and image are the same.

    Raises:
        TrainerError: The compilation failed.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        message = f"compile: torch.compile failed for this model: {first_line_of_cause(error)}. Train with --compile no"
        raise TrainerError(Exit.CONFIGURATION, message) from error
