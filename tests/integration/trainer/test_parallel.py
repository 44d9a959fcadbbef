"""The gradients do not depend on the number of processes or backward passes, nor on the kind of parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.integration.trainer.together import own_world, run_processes
from trainer.parallel import BF16, FP32, Precision, accumulating, distribute

pytestmark = pytest.mark.trainer
SAMPLES = 10


class Network(nn.Module):
    """A network of four layers, two of which are blocks with their own shards."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.GELU()) for _ in range(2))
        self.last = nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(self.blocks[1](self.blocks[0](self.first(inputs))))
        return result


def whole(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def gradients(kind: str, precision: Precision, parts: int) -> tuple[dict[str, Tensor], list[int]]:
    """In each process: train on its samples in `parts` backward passes; return gradients and graph sizes."""
    world = own_world()
    torch.manual_seed(0)
    network, device = Network(), torch.device("cpu")
    inputs = torch.randn(SAMPLES, 5)
    graphs: list[int] = []

    def counted(graph: Any, _examples: Any) -> Any:
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    with patch.object(torch, "compile", partial(torch.compile, backend=counted)):
        model = distribute(
            network,
            sharded=kind.startswith("fsdp"),
            compiled=kind.endswith("compiled"),
            precision=precision,
            device=device,
            bucket_megabytes=25,
        )
    samples = inputs[world.rank :: world.size].tensor_split(parts)
    for number, part in enumerate(samples):
        with accumulating(model, last=number == parts - 1):
            with precision.autocast(device) if kind == "ddp" else FP32.autocast(device):
                loss = model(part).float().pow(2).sum()
            (loss * world.size / SAMPLES).backward()
    return {name: whole(each.grad) for name, each in network.named_parameters()}, graphs


Variant = tuple[str, Precision, int]
Gradients = dict[Variant, tuple[dict[str, Tensor], list[int]]]
ONE_PASS: Variant = ("ddp", FP32, 1)
SAME: tuple[Variant, ...] = (ONE_PASS, ("ddp", FP32, 3), ("fsdp", FP32, 1), ("fsdp", FP32, 3))
IN_BF16: Variant = ("fsdp", BF16, 1)
COMPILED: Variant = ("fsdp-compiled", FP32, 3)


def gradients_of(variants: tuple[Variant, ...]) -> Gradients:
    """In each process: compute the gradients of each variant."""
    return {each: gradients(*each) for each in variants}


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    """The gradients in a world of one process."""
    found: dict[str, Tensor] = run_processes(1, gradients, *ONE_PASS)[0][0]
    return found


@pytest.fixture(scope="module")
def of_two() -> Gradients:
    """The gradients in the first of two processes."""
    found: Gradients = run_processes(2, gradients_of, (*SAME, IN_BF16, COMPILED))[0]
    return found


def test_gradient_is_equal_for_any_processes_passes_and_shards(
    alone: dict[str, Tensor], of_two: Gradients
) -> None:
    for variant in SAME:
        torch.testing.assert_close(of_two[variant][0], alone, rtol=1e-5, atol=1e-6)


def test_sharded_weights_in_bf16_have_gradients_in_float32(of_two: Gradients) -> None:
    exact, found = of_two["fsdp", FP32, 1][0], of_two[IN_BF16][0]
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert not torch.equal(gradient, exact[name])
        torch.testing.assert_close(gradient, exact[name], rtol=0.1, atol=0.05)


def test_sharded_blocks_compile_once_for_each_batch_size(alone: dict[str, Tensor], of_two: Gradients) -> None:
    found, graphs = of_two[COMPILED]
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)
    assert graphs == [2, 2], (
        "a linear layer and GELU, for parts of 2 samples and of 1; both blocks share a graph"
    )
