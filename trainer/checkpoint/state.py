"""The content of a checkpoint: the tensors of a model and its optimizer by name.

The names are the same with DistributedDataParallel, FSDP2, `torch.compile`, or none of them. The optimizer's other
values (learning rate, betas) are settings of the run, and are not loaded from a checkpoint.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.checkpoint.layout import Tensor

MODEL, OPTIMIZER = "model.", "optimizer."
State = dict[str, torch.Tensor]


def model_tensors(model: nn.Module) -> State:
    """Return the parameters and buffers of the model, without a copy. Tied weights appear once, by their first name.

    Raises:
        TypeError: The state dict of the model has a value that is not a tensor.
    """
    found: State = {}
    seen: set[tuple[object, ...]] = set()
    for name, value in get_model_state_dict(model).items():
        tensor = _tensor(MODEL + name, value)
        # Tied weights would be written twice, and they are the largest matrix of a language model.
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        place = (local.data_ptr(), local.dtype, local.shape, local.stride())
        if local.numel() and place in seen:
            continue
        seen.add(place)
        found[MODEL + name] = tensor
    return found


def gather(model: nn.Module, optimizer: Optimizer) -> State:
    """Return all tensors of model and optimizer, without a copy.

    Raises:
        ValueError: The optimizer has no state yet. Before the first step, torch would create it with an extra step.
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
    """Like `gather`, but create the state of an optimizer before its first step, for `restore` to overwrite."""
    get_optimizer_state_dict(model, optimizer)
    return gather(model, optimizer)


def fingerprint(state: State) -> dict[str, Tensor]:
    """Return shapes and dtypes of the full tensors, also if they are sharded."""
    return {
        name: Tensor(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in state.items()
    }


def _tensor(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: a checkpoint can only have tensors, found {type(value).__name__}")
    return value
