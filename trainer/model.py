"""The network as the loop in train.py calls it, scores and no loss; its home is `trainer.workloads.images`."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.workloads import images
from trainer.workloads.images import prepare as prepare


class ConvNet(images.ConvNet):
    """The same layers and weights, from prepared images (n, 1, size, size) to scores (n, classes)."""

    def __init__(self, image_size: int, classes: int) -> None:
        super().__init__(image_size, classes, white=1)

    def forward(self, prepared: Tensor) -> Tensor:  # type: ignore[override]
        return self.scores(prepared)


def weights(model: nn.Module) -> int:
    """How many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
