"""AdamW, and the learning rate of each step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How weights are changed. `gradient_clip` is the greatest norm that a step's gradient may have; 0 leaves it."""

    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    gradient_clip: float
    warmup_steps: int


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """The rate of step `step` (from 0) of `steps`: it rises evenly over the warm-up, then falls evenly to 0.

    A function of the step alone, so that nothing of it has to be kept in a checkpoint.
    """
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    return recipe.learning_rate * (steps - step) / max(1, steps - recipe.warmup_steps)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def make(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel on a GPU. Only matrices decay: biases and norms have no size to keep small.

    (https://github.com/karpathy/nanoGPT, model.py `configure_optimizers`, divides its parameters so.)
    """
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in learned if each.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [each for each in learned if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, fused=device.type == "cuda" or None
    )
