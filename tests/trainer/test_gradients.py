"""The gradient of a step does not depend on how many processes share its images."""

from __future__ import annotations

import pytest
import torch

from trainer.data import CLASSES
from trainer.model import ConvNet, prepare, weights
from trainer.shards import shard
from trainer.train import measure, own_part

pytestmark = pytest.mark.trainer


def gradient(network: ConvNet, pixels: torch.Tensor, labels: torch.Tensor, world: int) -> torch.Tensor:
    """What DDP makes of the step: the mean over processes of each one's gradient."""
    total = torch.zeros(weights(network), dtype=torch.float64)
    indices = torch.arange(len(labels)).numpy()
    for rank in range(world):
        network.zero_grad()
        mine = torch.from_numpy(shard(indices, rank, world))
        loss, _ = measure(network(prepare(pixels[mine], 16).double()), labels[mine])
        own_part(loss, world, len(labels)).backward()
        total += torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]) / world
    return total


@pytest.mark.parametrize("count", [30, 3])
def test_every_world_size_gives_the_same_gradient_even_with_empty_shares(count: int) -> None:
    torch.manual_seed(0)
    network = ConvNet(8, CLASSES).double()
    pixels, labels = torch.randint(0, 17, (count, 8, 8)), torch.randint(0, CLASSES, (count,))
    alone = gradient(network, pixels, labels, 1)
    for world in (2, 3, 4, 8):
        torch.testing.assert_close(gradient(network, pixels, labels, world), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("size", "expected"), [(8, 151_306), (28, 421_642)])
def test_the_network_fits_digits_and_mnist(size: int, expected: int) -> None:
    network = ConvNet(size, CLASSES)
    assert weights(network) == expected
    assert network(torch.zeros(2, 1, size, size)).shape == (2, CLASSES)
