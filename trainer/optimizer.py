"""The AdamW optimizer and the learning-rate schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from trainer.config import Config


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyperparameters of the optimizer. `gradient_clip` is the maximum norm of a gradient, 0 for no limit."""

    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    gradient_clip: float
    warmup_steps: int


# For images, the defaults of AdamW. For tokens, those of the smallest model in "Language Models are Few-Shot Learners"
# (Brown et al., 2020, appendix B): warm-up over 375 million tokens, half a million per step; shorter in a short run.
_IMAGES: Final = Recipe(
    learning_rate=0.001, betas=(0.9, 0.999), weight_decay=0.01, gradient_clip=0.0, warmup_steps=0
)
_TOKENS: Final = Recipe(
    learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, gradient_clip=1.0, warmup_steps=750
)
_MAX_WARMUP_SHARE: Final = 0.1


def recipe(config: Config, unit: str, steps: int) -> Recipe:
    """Return the default hyperparameters for this kind of data, overridden by the settings."""
    default = _TOKENS if unit == "tokens" else _IMAGES
    default = replace(default, warmup_steps=min(default.warmup_steps, int(_MAX_WARMUP_SHARE * steps)))
    overrides = {
        name: getattr(config, name)
        for name in ("learning_rate", "weight_decay", "gradient_clip", "warmup_steps")
        if getattr(config, name) is not None
    }
    return replace(default, **overrides)


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """Return the learning rate of step `step` (from 0): a linear warm-up, then a linear decay to 0.

    It only depends on the step, so a checkpoint need not contain it.
    """
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    return recipe.learning_rate * (steps - step) / max(1, steps - recipe.warmup_steps)


def make(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW, fused on a GPU. Only matrices have weight decay, not biases and norms, as in nanoGPT.

    Source: https://github.com/karpathy/nanoGPT, model.py `configure_optimizers`.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trainable if each.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [each for each in trainable if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, betas=recipe.betas, fused=device.type == "cuda" or None
    )
