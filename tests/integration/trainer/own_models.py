"""Workloads of a user with models that need care, for `--workload tests.integration.trainer.own_models:NAME`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.workloads.custom import CustomWorkload


class Unused(nn.Module):
    """A model with a layer that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.used(inputs)
        return outputs


def create_workload(name: str, model: Callable[[], nn.Module]) -> CustomWorkload:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    samples = [(each, int(each.sum() > 0)) for each in inputs]
    return CustomWorkload(name, model=model, loss=F.cross_entropy, train=samples, test=samples[:8])


def unused(_data: str) -> CustomWorkload:
    return create_workload("unused", Unused)


class Extra(nn.Linear):
    def get_extra_state(self) -> object:
        return {"count": 3}

    def set_extra_state(self, state: object) -> None:
        """Do nothing."""


def extra(_data: str) -> CustomWorkload:
    """A model whose state has a value that is not a tensor."""
    return create_workload("extra", lambda: Extra(4, 2))


class CountingDropout(nn.Dropout):
    """Dropout with a buffer that counts forward passes, as that of batch normalization does."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return super().forward(inputs)


def dropout(_data: str) -> CustomWorkload:
    return create_workload(
        "dropout", lambda: nn.Sequential(nn.Linear(4, 16), CountingDropout(), nn.Linear(16, 2))
    )


class Blocks(nn.Module):
    """A model with two blocks of its own, a block that occurs twice, and one that shares its weights with `last`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 8)
        twice, tied = nn.Linear(8, 8), nn.Linear(8, 8)
        tied.weight = self.last.weight
        self.blocks = nn.ModuleList([nn.Linear(8, 8), twice, nn.Linear(8, 8), twice, tied])

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        outputs: Tensor = self.last(hidden)
        return outputs


def blocks(_data: str) -> CustomWorkload:
    return create_workload("blocks", Blocks)


class Numbered(nn.Linear):
    """A model whose attribute `blocks` is not a list of modules."""

    blocks = 4


def numbered(_data: str) -> CustomWorkload:
    return create_workload("numbered", lambda: Numbered(4, 2))


def norm(_data: str) -> CustomWorkload:
    return create_workload(
        "norm", lambda: nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    )


class Average(nn.Module):
    """A layer that replaces its buffer, the moving average of its inputs, in each forward pass."""

    average: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(width))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and len(inputs):
            self.average = 0.9 * self.average + 0.1 * inputs.detach().mean(0)
        return inputs - self.average


def average(_data: str) -> CustomWorkload:
    return create_workload("average", lambda: nn.Sequential(nn.Linear(4, 16), Average(16), nn.Linear(16, 2)))
