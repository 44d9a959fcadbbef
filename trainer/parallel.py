"""One model on many processes: replicated (DDP) or sharded (FSDP2), compiled where that pays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from trainer.precision import Precision


def distribute(
    network: nn.Module,
    *,
    sharded: bool,
    compiled: bool,
    precision: Precision,
    device: torch.device,
    bucket_megabytes: int,
) -> nn.Module:
    """The model that the loop calls; its weights are `network`'s, which stands on `device` already.

    DDP averages gradients in buckets of `bucket_megabytes` while the backward pass still runs. Sharded, each process
    keeps its part of each of `network.blocks`, where it has some, and of the rest. One process alone needs neither.
    """
    if sharded:
        if compiled:
            _compile_parts(network)
        # Imported here, and its classes known by their methods below: it takes a second, in every process.
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in getattr(network, "blocks", ()):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(network, mesh=mesh, mp_policy=policy)
        return network
    # torch cuts the graph at DDP's buckets, so that they are exchanged while the backward pass still runs. There is a
    # graph for each size of batch, and these are few: in a graph for all of them the usual one would be slower.
    model: nn.Module = torch.compile(network, dynamic=False) if compiled else network  # type: ignore[assignment]
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_megabytes,
            gradient_as_bucket_view=True,
        )
    return model


def _compile_parts(network: nn.Module) -> None:
    """Compile each of `network.blocks` and its loss (`judge`) by itself, the network as a whole where it has none.

    What FSDP2 does before and after a block (fetch its weights, drop them) can be in no graph: compiled as a whole, a
    network falls to pieces there. Compiled is `forward` alone, which those hooks stand around; blocks that are alike
    share one graph (github.com/pytorch/torchtitan, `apply_compile` in models/llama3/infra/parallelize.py).
    """
    model: Any = network
    for part in getattr(model, "blocks", None) or (model,):
        part.forward = torch.compile(part.forward, dynamic=False)
    if hasattr(model, "judge"):
        model.judge = torch.compile(model.judge, dynamic=False)


@contextmanager
def accumulating(model: nn.Module, last: bool) -> Iterator[None]:
    """One of several backward passes of a step: only the last one exchanges gradients."""
    if isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
        return
    sharded: Any = model
    if hasattr(sharded, "set_requires_gradient_sync"):  # FSDP2's, compiled or not
        sharded.set_requires_gradient_sync(last)
        sharded.set_is_last_backward(last)
    yield


def whole(tensor: Tensor) -> Tensor:
    """A parameter as one tensor, also where each process has a part of it: called by all processes together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
