"""Example of a workload of your own: classify points of two interleaved spirals."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.workloads.custom import CustomWorkload


class Spirals(torch.utils.data.Dataset):
    """Noisy points of two spirals, and the spiral (0 or 1) of each."""

    def __init__(self, samples: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.spiral = torch.arange(samples) % 2
        angle = 3 * torch.pi * torch.rand(samples, generator=random).sqrt()
        turned = angle + torch.pi * self.spiral
        points = torch.stack([angle * turned.cos(), angle * turned.sin()], dim=1) / 10
        self.points = points + 0.01 * torch.randn(samples, 2, generator=random)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.spiral[index]


def workload(_data: str) -> CustomWorkload:
    """Define the workload. The argument is the value of `--data`, which this example does not need."""
    return CustomWorkload(
        "spirals",
        model=lambda: nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
        ),
        loss=F.cross_entropy,
        correct=lambda scores, spiral: (scores.argmax(1) == spiral).sum(),
        train=Spirals(2000, seed=0),
        test=Spirals(500, seed=1),
    )
