"""One model on many processes: replicated (DDP) or sharded (FSDP2), compiled where that pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.precision import Precision

KINDS: Final = ("ddp", "fsdp")


def distribute(
    network: nn.Module,
    blocks: Iterable[nn.Module],
    *,
    kind: str,
    compiled: bool,
    precision: Precision,
    device: torch.device,
    bucket_megabytes: int,
) -> nn.Module:
    """The model that the loop calls; its weights are `network`'s, which stands on `device` already.

    `ddp` averages gradients in buckets of `bucket_megabytes` while the backward pass still runs. `fsdp` keeps of each
    of `blocks`, and of the rest, only this process's shard. A world of one process needs neither.
    """
    alone = dist.get_world_size() == 1
    if kind == "fsdp" and not alone:
        policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
        for block in blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(network, mp_policy=policy)
    # Before DDP: compiled around it, the graph would be cut at each bucket.
    model: nn.Module = torch.compile(network, dynamic=False) if compiled else network  # type: ignore[assignment]
    if kind == "ddp" and not alone:
        model = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=bucket_megabytes,
            gradient_as_bucket_view=True,
        )
    return model


@contextmanager
def accumulating(model: nn.Module, last: bool) -> Iterator[None]:
    """One of several backward passes of a step: only the last one exchanges gradients."""
    if isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
        return
    for module in (model, getattr(model, "_orig_mod", None)):
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last)
            module.set_is_last_backward(last)
    yield
