"""The learning rate of each step, and which weights decay."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

if TYPE_CHECKING:
    from trainer.optimizer import Recipe

pytestmark = [pytest.mark.unit, pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Import torch where the tests run. Collection imports this module in every worker, and torch takes two seconds."""
    global torch, nn, Recipe, learning_rate, make
    import torch
    from torch import nn

    from trainer.optimizer import Recipe, learning_rate, make


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


def test_learning_rate_of_warmup_only_run_is_defined() -> None:
    assert [learning_rate(step, 2, recipe(warmup=2)) for step in range(3)] == pytest.approx([0.25, 0.5, 0.0])


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
