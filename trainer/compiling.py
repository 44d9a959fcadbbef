"""Whether torch.compile works where the training runs, found out once and before the first step.

What it needs is part of the image: a C compiler, Python's headers, a place for its cache, a name for the user. A
training that finds a fault in its first step would be started again on the same image, with the same end.
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
from trainer.say import say
from trainer.world import World

ADVICE = "Give the image a C compiler with Python's headers, or train with --compile no"


def is_compiled(config: Config, world: World, device: torch.device) -> bool:
    """Whether this training is compiled: all processes together, and all or none of them.

    Raises:
        TrainerError: `--compile yes`, and it does not work here.
    """
    if not is_wanted(config, device):
        return False
    reason = together(lambda: reason_against(config, device), device)
    if reason and world.local_rank == 0:
        say(f"compile=no rank={world.rank} reason=torch.compile does not work here: {reason}. {ADVICE}")
    works = torch.tensor(0 if reason else 1, device=device)
    dist.all_reduce(works, op=dist.ReduceOp.MIN)
    return bool(works.item())


def is_wanted(config: Config, device: torch.device) -> bool:
    """Whether the settings ask for it."""
    return config.compile == "yes" or (config.compile == "auto" and device.type == "cuda")


def reason_against(config: Config, device: torch.device) -> str:
    """Why to train without it, "" where it works. Raises TrainerError where the settings insist on it."""
    reason = fault(device)
    if reason and config.compile == "yes":
        raise TrainerError(
            Exit.CONFIGURATION, f"compile: torch.compile does not work here: {reason}. {ADVICE}"
        )
    return reason


def fault(device: torch.device) -> str:
    """Why a small function can't be compiled for the device, in one line; "" where it can."""
    try:
        torch.compile(_small, dynamic=False)(torch.ones(8, device=device)).sum().item()
    except Exception as error:  # Triton's, the compiler's, the file system's
        return cause(error)
    return ""


def _small(values: Tensor) -> Tensor:
    return values.sin() + 1


def cause(error: BaseException) -> str:
    """The first line of what was raised first."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    lines = [line.strip() for line in str(first).splitlines() if line.strip()]
    return (lines[0] if lines else type(first).__name__).rstrip(".")


@contextmanager
def told_as_configuration() -> Iterator[None]:
    """A model that can't be compiled ends the run with its cause, as the next try would: code and image are the same.

    Raises:
        TrainerError: compilation failed.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        message = f"compile: torch.compile failed for this model: {cause(error)}. Train with --compile no"
        raise TrainerError(Exit.CONFIGURATION, message) from error
