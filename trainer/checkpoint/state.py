"""What a checkpoint holds: the tensors of a model and its optimizer, by name, and nothing else.

The names are the same under DistributedDataParallel, FSDP2 and `torch.compile`, and without any of them. What an
optimizer keeps beside tensors (learning rate, betas) is the run's settings: they are not taken from a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.checkpoint.layout import Tensor
from trainer.checkpoint.reader import Reader

MODEL, OPTIMIZER = "model.", "optimizer."
State = dict[str, torch.Tensor]


def model_tensors(model: nn.Module) -> State:
    """The model's parameters and buffers, themselves and not copies; of tied weights the first name alone.

    Raises TypeError for a module that keeps something else.
    """
    found: State = {}
    seen: set[tuple[object, ...]] = set()
    for name, value in get_model_state_dict(model).items():
        tensor = _tensor(MODEL + name, value)
        # What is shared twice would be written twice, and that is the largest matrix of a language model.
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        place = (own.data_ptr(), own.dtype, own.shape, own.stride())
        if own.numel() and place in seen:
            continue
        seen.add(place)
        found[MODEL + name] = tensor
    return found


def gather(model: nn.Module, optimizer: Optimizer) -> State:
    """All tensors of both, themselves and not copies. Comes after the first step: raises ValueError before it.

    Before it an optimizer has nothing to keep, and torch would take a step of its own to change that.
    """
    if not optimizer.state:
        raise ValueError("the optimizer has no state before its first step")
    found = model_tensors(model)
    state = cast(dict[str, dict[str, object]], get_optimizer_state_dict(model, optimizer)["state"])
    for name, values in state.items():
        for key, value in values.items():
            found[f"{OPTIMIZER}{name}.{key}"] = _tensor(f"{OPTIMIZER}{name}.{key}", value)
    return found


def blank(model: nn.Module, optimizer: Optimizer) -> State:
    """`gather` for an optimizer that has not stepped: its state is made, to be written over by `restore`."""
    get_optimizer_state_dict(model, optimizer)
    return gather(model, optimizer)


def fingerprint(state: State) -> dict[str, Tensor]:
    """What the tensors are, whole, also where each process has a part of them only."""
    return {
        name: Tensor(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in state.items()
    }


def storage_sizes(state: State) -> list[int]:
    """Bytes of each piece of memory that this process's parts lie in: what a copy takes here."""
    sizes: dict[int, int] = {}
    for each in state.values():
        storage = (each.to_local() if isinstance(each, DTensor) else each).untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return list(sizes.values())


def restore(state: State, directory: Path, group: dist.ProcessGroup) -> None:
    """Read a checkpoint's files into these tensors, in place; all processes of the (gloo) group together.

    Raises CheckpointException in all of them when one fails.
    """
    load(state, storage_reader=Reader(directory), process_group=group)


def _tensor(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: a checkpoint holds tensors only, found {type(value).__name__}")
    return value
