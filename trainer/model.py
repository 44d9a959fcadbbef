"""A convolutional network for small grey images: 152 thousand weights at 8 x 8, 421 thousand at 28 x 28."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Two 3 x 3 convolutions and two linear layers, from images (n, 1, size, size) to scores (n, classes).

    Nothing in it depends on the other images of a batch (no batch normalisation), so that the same global batch gives
    the same gradient however many processes share it.
    """

    def __init__(self, image_size: int, classes: int) -> None:
        super().__init__()
        pools = 1 if image_size < 16 else 2
        side = image_size // 2**pools
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2) if pools == 2 else nn.Identity(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


def weights(model: nn.Module) -> int:
    """How many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def prepare(pixels: Tensor, white: int) -> Tensor:
    """Images (n, height, width) of bytes as the network wants them: (n, 1, height, width), 0 to 1."""
    return pixels.unsqueeze(1).to(torch.float32) / white
