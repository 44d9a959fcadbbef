"""The content of a checkpoint: the tensors of a model and its optimizer by name.

The names are the same with DistributedDataParallel, FSDP2, `torch.compile`, or none of them. The optimizer's other
values (learning rate, betas) are settings of the run, and are not loaded from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection
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
    """Return the parameters and buffers of the model, without a copy. Tied weights appear once, by their first name."""
    found: State = {}
    seen: set[tuple[object, ...]] = set()
    # `trainer.save.check_tensors` refuses other values at the start of a run.
    for name, tensor in cast(State, get_model_state_dict(model)).items():
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

    A parameter without optimizer state gets the initial state, so that names do not depend on the steps before.
    """
    _initialize(optimizer)
    found = model_tensors(model)
    state = cast(dict[str, State], get_optimizer_state_dict(model, optimizer)["state"])
    for name, values in state.items():
        found |= {f"{OPTIMIZER}{name}.{key}": value for key, value in values.items()}
    return found


def _initialize(optimizer: Optimizer) -> None:
    """Create the state of parameters that have had no gradient, with zeros, as the first step of each would begin.

    The optimizer itself creates it, in a step with zero gradients at learning rate 0, which changes no weights. torch
    does the same in `get_optimizer_state_dict`, but leaves the count of one step, and only before the first step.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    missing = [each for each in parameters if not optimizer.state.get(each)]
    if not missing:
        return
    gradients = [each.grad for each in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for each in parameters:
        each.grad = None
    for each in missing:
        each.grad = torch.zeros_like(each)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for each in missing:
        for value in optimizer.state[each].values():
            value.zero_()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for each, gradient in zip(parameters, gradients, strict=True):
        each.grad = gradient


def without_unsaved(state: State, saved: Collection[str]) -> State:
    """Return `state` without the optimizer state of parameters for which a checkpoint has none: they begin with zeros.

    A parameter has none if the user set its `requires_grad` only after the checkpoint.
    """
    known = {name.rpartition(".")[0] for name in saved}
    return {
        name: each
        for name, each in state.items()
        if name.startswith(MODEL) or name.rpartition(".")[0] in known
    }


def fingerprint(state: State) -> dict[str, Tensor]:
    """Return shapes and dtypes of the full tensors, also if they are sharded."""
    return {
        name: Tensor(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in state.items()
    }
