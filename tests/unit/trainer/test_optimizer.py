"""The learning rate of each step, and which weights decay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.optimizer import Recipe, learning_rate, make, set_learning_rate

pytestmark = pytest.mark.unit


def recipe(warmup: int = 0, decay: float = 0.1) -> Recipe:
    return Recipe(
        learning_rate=0.5, betas=(0.9, 0.95), weight_decay=decay, gradient_clip=1.0, warmup_steps=warmup
    )


def test_the_rate_falls_evenly_to_nothing_after_the_last_step() -> None:
    assert [learning_rate(step, 5, recipe()) for step in range(6)] == pytest.approx(
        [0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    )


def test_the_rate_rises_over_the_warm_up_first() -> None:
    rates = [learning_rate(step, 8, recipe(warmup=4)) for step in range(8)]
    assert rates == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.375, 0.25, 0.125])


def test_a_training_of_nothing_but_warm_up_has_a_rate_for_each_step() -> None:
    assert [learning_rate(step, 2, recipe(warmup=2)) for step in range(3)] == pytest.approx([0.25, 0.5, 0.0])


def test_matrices_decay_and_nothing_else() -> None:
    """With no gradient a step changes exactly what decays: w - rate * decay * w."""
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = make(model, recipe(), torch.device("cpu"))
    set_learning_rate(optimizer, 0.25)
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    for name, each in model.named_parameters():
        kept = 1 - 0.25 * 0.1 if name == "0.weight" else 1.0
        torch.testing.assert_close(each.detach(), before[name] * kept)
