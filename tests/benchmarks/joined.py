"""What the trainer's loop and the loops beside it start from: the processes' world, and AdamW as each has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from trainer import hang
from trainer.config import Config
from trainer.distributed import init_distributed
from trainer.hang import Watch
from trainer.reporter import EndReport
from trainer.shutdown import Stop
from trainer.train import make_watch
from trainer.world import World


@dataclass(frozen=True)
class Joined:
    """One of torchrun's processes that has met the others."""

    world: World
    device: torch.device
    stop: Stop
    watch: Watch


@contextmanager
def joined(config: Config) -> Iterator[Joined]:
    """This process with the watch and the agreement on stops that a training has."""
    world = World.read(os.environ)
    watch = make_watch(config, world, EndReport())
    stop = Stop(patience=20, phase=lambda: watch.phase)
    stop.listen()
    watch.start()
    device, _ = init_distributed(config, world)
    stop.create_group(hang.timeout(config.start_timeout_seconds))
    yield Joined(world, device, stop, watch)
    stop.settle()
    dist.destroy_process_group()
    watch.close()
    stop.close()


def plain_adamw(network: nn.Module, device: torch.device) -> torch.optim.AdamW:
    """AdamW as one writes it for a GPT: our recipe's numbers, by hand."""
    matrices = [each for each in network.parameters() if each.dim() >= 2]
    others = [each for each in network.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=device.type == "cuda" or None)
