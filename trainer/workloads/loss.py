"""What `forward` of a model returns: the summed loss, and the sums of loss, correct units and units."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the summed loss of targets (n) for scores (n, classes)."""
    # A sum over a batch needs 32 bits. Autocast casts by itself, FSDP's mixed precision does not.
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return F.cross_entropy(exact, targets, reduction="sum")


def with_sums(loss: Tensor, correct: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Return the summed loss of `units` units, and (loss, correct, units) as float64."""
    count = torch.full((), units, dtype=torch.float64, device=loss.device)
    return loss, torch.stack([loss.detach().double(), correct.detach().double(), count])
