"""A step is the same however its samples are spread: over processes, over backward passes, replicated or sharded."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.parallel import accumulating, distribute
from trainer.precision import BF16, FP32, Precision

pytestmark = pytest.mark.trainer
SAMPLES = 10


class Network(nn.Module):
    """Four layers, two of them blocks to shard by themselves."""

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


def gradients(rank: int, world: int, folder: str, kind: str, precision: Precision, parts: int) -> None:
    """One process: its share of the samples in `parts` backward passes; what comes out goes to a file."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    torch.manual_seed(0)
    network, device = Network(), torch.device("cpu")
    inputs = torch.randn(SAMPLES, 5)
    graphs: list[int] = []

    def counted(graph: Any, _examples: Any) -> Any:
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    torch.compile = partial(torch.compile, backend=counted)
    model = distribute(
        network,
        sharded=kind.startswith("fsdp"),
        compiled=kind.endswith("compiled"),
        precision=precision,
        device=device,
        bucket_megabytes=25,
    )
    own = inputs[rank::world].tensor_split(parts)
    for number, part in enumerate(own):
        with accumulating(model, last=number == parts - 1):
            with precision.autocast(device) if kind == "ddp" else FP32.autocast(device):
                loss = model(part).float().pow(2).sum()
            (loss * world / SAMPLES).backward()
    found = {name: whole(each.grad) for name, each in network.named_parameters()}
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
        Path(folder, "graphs").write_text(json.dumps(graphs))
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path, world: int, kind: str, parts: int, precision: Precision = FP32) -> dict[str, Tensor]:
    folder.mkdir()
    processes.spawn(gradients, (world, str(folder), kind, precision, parts), nprocs=world)
    found: dict[str, Tensor] = torch.load(folder / "found.pt", weights_only=True)
    return found


def test_processes_passes_and_sharding_change_nothing_of_the_gradient(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", 1, "ddp", 1)
    for world, kind, parts in [(2, "ddp", 1), (2, "ddp", 3), (2, "fsdp", 1), (2, "fsdp", 3)]:
        found = run(tmp_path / f"{world}-{kind}-{parts}", world, kind, parts)
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)


def test_sharded_weights_compute_in_bf16_and_their_gradients_stay_in_float32(tmp_path: Path) -> None:
    exact, found = run(tmp_path / "exact", 2, "fsdp", 1), run(tmp_path / "bf16", 2, "fsdp", 1, BF16)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert not torch.equal(gradient, exact[name])
        torch.testing.assert_close(gradient, exact[name], rtol=0.1, atol=0.05)


def test_sharded_blocks_are_compiled_whole_and_once_for_each_size_of_batch(tmp_path: Path) -> None:
    alone, found = run(tmp_path / "alone", 1, "ddp", 1), run(tmp_path / "found", 2, "fsdp-compiled", 3)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)
    graphs = json.loads((tmp_path / "found" / "graphs").read_text())
    assert graphs == [2, 2], (
        "a linear layer and GELU, for parts of 2 samples and of 1; both blocks share a graph"
    )
