"""What holds for the models of images and of tokens alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trainer.data import micro_batches
from trainer.workloads import Workload, load

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module", params=["digits", "corpus"])
def workload(request: pytest.FixtureRequest) -> Workload:
    return load(request.param)


def test_gradient_is_independent_of_shares_and_micro_batches(workload: Workload) -> None:
    network = workload.model().double()
    indices = np.arange(7)

    def gradient(parts: list[NDArray[np.int64]]) -> torch.Tensor:
        network.zero_grad()
        for part in parts:
            network(*workload.batch(part, "train"))[0].backward()
        return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])

    whole = gradient([indices])
    for world in (3, 9):  # in the larger one, two processes have no share
        parts = [part for rank in range(world) for part in micro_batches(indices, rank, world, 2)]
        assert torch.allclose(gradient(parts), whole, rtol=1e-9, atol=1e-12)
    nothing = gradient([indices[:0]])
    assert len(nothing) == workload.parameters
    assert not nothing.any()


def test_loss_is_summed_in_float32_for_any_weight_type(workload: Workload) -> None:
    network, batch = workload.model(), workload.batch(np.arange(40), "train")
    exact = network(*batch)[0]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = network(*batch)[0]
    half = network.bfloat16()(*batch)[0]
    for loss in (mixed, half):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact.item(), rel=0.02)


def test_network_compiles_fullgraph_in_training_and_evaluation(workload: Workload) -> None:
    network = workload.model()
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    for training in (True, False):
        network.train(training)
        for size in (3, 2):  # an epoch's last batch is smaller
            batch = workload.batch(np.arange(size), "train")
            assert torch.allclose(compiled(*batch)[1], network(*batch)[1])
