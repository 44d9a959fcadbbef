"""Whether a training's numbers are still numbers: looked at where the device is waited for anyway.

A loss that is infinite or not a number (NaN) makes every weight so with the next update, and no later step heals that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract import Exit
from trainer.others import SharedError


class DivergedError(SharedError):
    """Loss or weights are no numbers any more. All processes raise it alike.

    Its code is that of wrong settings, which nobody begins anew: from the last good checkpoint the same samples in the
    same order lead to the same place, and what helps is another learning rate.
    """

    def __init__(self, what: str, step: int, learning_rate: float) -> None:
        super().__init__(
            Exit.CONFIGURATION,
            f"{what} at step {step}: the training diverged, and would again if it went on from its last checkpoint, "
            f"which stays; expected a lower learning_rate (it is {learning_rate:g}), a smaller gradient_clip or a "
            "longer warm-up",
        )


class Losses:
    """The losses of one interval after another.

    With a gradient scaler (`scaled`) one interval may be no number: float16 overflows at times in the forward pass, the
    scaler leaves out that update, and the weights stay as they were.
    """

    def __init__(self, *, scaled: bool) -> None:
        self._forgiven = 1 if scaled else 0
        self._in_a_row = 0

    def diverged(self, loss: float) -> bool:
        """Whether this interval's loss, after those before it, means that nothing is learnt any more."""
        self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
        return self._in_a_row > self._forgiven


@torch.no_grad()
def are_finite(tensors: Iterable[Tensor], device: torch.device) -> bool:
    """Whether every number in these tensors is finite, in all processes, which call it together. Waits for the device.

    Of a sharded tensor each process looks at its part. The greatest magnitude of a tensor is NaN when one number is.
    """
    own = (each.to_local() if hasattr(each, "to_local") else each for each in tensors)
    greatest = [torch.linalg.vector_norm(each, math.inf).float() for each in own if each.numel()]
    found = torch.stack(greatest).isfinite().all() if greatest else torch.tensor(True, device=device)
    unsound = (~found).to(torch.int32)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(unsound, dist.ReduceOp.MAX)
    return not unsound.item()
