"""Small models whose checkpoints the tests write and read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainer.checkpoint import state
from trainer.checkpoint.layout import Manifest
from trainer.checkpoint.load import Found, newest, read
from trainer.checkpoint.save import Saver
from trainer.config import Config
from trainer.stores import Store
from trainer.world import World

DIGEST = "d" * 64


def network(width: int = 8, seed: int = 0) -> nn.Module:
    """Create a model with two layers, a buffer and tied weights."""
    torch.manual_seed(seed)
    first, last = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
    last.weight = first.weight
    return nn.Sequential(first, nn.BatchNorm1d(width), nn.Linear(width, width), last)


def create_optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, width: int = 8) -> None:
    """Train steps `first` to `last`. A step's input depends on its number only."""
    for step in range(first, last + 1):
        inputs = torch.randn(16, width, generator=torch.Generator().manual_seed(step))
        model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def create_trained_model(steps: int, width: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network(width)
    optimizer = create_optimizer(model)
    train(model, optimizer, 1, steps, width)
    return model, optimizer


def copy_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in state.gather(model, optimizer).items()}


def create_saver(
    store: Store,
    group: dist.ProcessGroup,
    *,
    keep: int = 2,
    local_size: int = 1,
    found: Found | None = None,
    scratch: Path | None = None,
    **more: Any,
) -> Saver:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    trainer: Any = SimpleNamespace(
        config=Config(checkpoint_keep=keep),
        world=World(rank, size, 0, local_size, 1),
        workload=SimpleNamespace(digest=DIGEST),
        device=torch.device("cpu"),
    )
    saver = Saver(store, group, trainer, found=found, **more)
    saver.scratch = scratch or saver.scratch
    return saver


def create_found(step: int, damaged: tuple[int, ...] = ()) -> Found:
    """Return a loaded checkpoint, of which only the steps are known."""
    manifest = Manifest(
        step=step, position=0, world_size=1, data_digest=DIGEST, fingerprint={}, files={}, notes={}
    )
    return Found(manifest, Path(), damaged, is_copy=False)


def load(
    store: Store, group: dist.ProcessGroup, model: nn.Module, lines: list[str] | None = None, **more: Any
) -> Found | None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    log_line = (lambda _line: None) if lines is None else lines.append
    options = {
        "model": state.fingerprint(state.model_tensors(model)),
        "data_digest": DIGEST,
        "log_line": log_line,
    }
    return newest(store, group, World(rank, size, rank, size, 1), **{**options, **more})


def resume(
    store: Store, group: dist.ProcessGroup, width: int = 8
) -> tuple[int, nn.Module, torch.optim.Optimizer]:
    """Load the newest checkpoint into a model of another seed; return its step, too."""
    model = network(width, seed=1)
    optimizer = create_optimizer(model)
    found = load(store, group, model)
    assert found is not None
    read(found, model, optimizer, group)
    found.forget()
    return found.manifest.step, model, optimizer
