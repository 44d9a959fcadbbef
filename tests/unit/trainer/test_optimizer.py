"""The learning rate of each step, and which weights decay."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn

from trainer.optimizer import Recipe, learning_rate, make

pytestmark = pytest.mark.long


def recipe(warmup: int = 0) -> Recipe:
    return Recipe(
        learning_rate=0.5, betas=(0.9, 0.95), weight_decay=0.1, gradient_clip=1.0, warmup_steps=warmup
    )


@pytest.mark.parametrize(
    ("steps", "warmup", "rates"),
    [
        (5, 0, [0.5, 0.4, 0.3, 0.2, 0.1, 0.0]),
        (8, 4, [0.125, 0.25, 0.375, 0.5, 0.5, 0.375, 0.25, 0.125]),
        (2, 2, [0.25, 0.5, 0.0]),
    ],
)
def test_learning_rate_rises_in_the_warm_up_and_falls_to_0(
    steps: int, warmup: int, rates: list[float]
) -> None:
    found = [learning_rate(step, steps, recipe(warmup)) for step in range(len(rates))]
    assert found == pytest.approx(rates)


def test_optimizer_decays_matrices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock replaces AdamW: the first real optimizer of a process imports torch's compiler, for two seconds."""
    adamw = mock.Mock()
    monkeypatch.setattr(torch.optim, "AdamW", adamw)
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    assert make(model, recipe(), torch.device("cpu")) is adamw.return_value
    ((groups,), given) = adamw.call_args
    decay = {id(each): group["weight_decay"] for group in groups for each in group["params"]}
    names = {name: decay[id(each)] for name, each in model.named_parameters()}
    assert names == {"0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0}
    assert (given["lr"], given["betas"]) == (0.5, (0.9, 0.95))
