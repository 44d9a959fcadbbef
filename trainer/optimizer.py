"""AdamW, and the learning rate of each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from trainer.config import Config


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How weights are changed. `gradient_clip` is the greatest norm that a step's gradient may have; 0 leaves it."""

    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    gradient_clip: float
    warmup_steps: int


# Of images, AdamW's own. Of tokens, those of "Language Models are Few-Shot Learners" (Brown et al., 2020, appendix B)
# for its smallest model, which warms up over 375 million tokens at half a million a step; a short run warms up less.
_IMAGES: Final = Recipe(
    learning_rate=0.001, betas=(0.9, 0.999), weight_decay=0.01, gradient_clip=0.0, warmup_steps=0
)
_TOKENS: Final = Recipe(
    learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, gradient_clip=1.0, warmup_steps=750
)
_LONGEST_WARMUP: Final = 0.1


def recipe(config: Config, unit: str, steps: int) -> Recipe:
    """What fits the model, but for what the settings say."""
    fitting = _TOKENS if unit == "tokens" else _IMAGES
    fitting = replace(fitting, warmup_steps=min(fitting.warmup_steps, int(_LONGEST_WARMUP * steps)))
    told = {
        name: getattr(config, name)
        for name in ("learning_rate", "weight_decay", "gradient_clip", "warmup_steps")
        if getattr(config, name) is not None
    }
    return replace(fitting, **told)


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
