"""Background processes save a sharded model, as on GPUs: each gets its rank's shards and the mesh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.integration.trainer.checkpoints import (
    are_tensors_equal,
    create_optimizer,
    create_saver,
    load,
    train,
)
from tests.integration.trainer.test_checkpoints_together import group, sharded
from tests.integration.trainer.together import run_processes
from trainer.checkpoint import state
from trainer.checkpoint.load import read
from trainer.stores import Directory

pytestmark = pytest.mark.trainer


def full_tensors(tensors: state.State) -> state.State:
    return {
        name: each.full_tensor() if isinstance(each, DTensor) else each.clone()
        for name, each in tensors.items()
    }


def save_by_processes(path: Path) -> tuple[list[bool], int, list[str]]:
    """Save twice by a background process of each rank, with a step between; write the full tensors to a file."""
    lines: list[str] = []
    with (path / f"stderr-{dist.get_rank()}").open("wb") as errors:
        os.dup2(errors.fileno(), 2)  # the background processes inherit it
    model = sharded()
    optimizer = create_optimizer(model)
    store_address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    saver = create_saver(Directory(path), group(), store_address=store_address, log_line=lines.append)
    done = []
    for step in (1, 2):
        train(model, optimizer, step, step)
        tensors = state.gather(model, optimizer)
        if step == 1:
            saver.allocate(tensors)
        saver.finish()  # the process has started
        saver.save(tensors, step, 16 * step)
        saver.staged()
        done.append(saver.finish())
    torch.save(full_tensors(tensors), path / f"whole-{dist.get_rank()}.pt")
    saver.close()
    return done, saver.counts.saved, lines


def load_sharded(path: Path) -> tuple[int, state.State]:
    model = sharded()
    optimizer = create_optimizer(model)
    own_group = group()
    found = load(Directory(path), own_group, model)
    assert found is not None
    read(found, model, optimizer, own_group)
    return found.manifest.step, full_tensors(state.gather(model, optimizer))


def test_background_processes_save_a_sharded_model(tmp_path: Path) -> None:
    answers = run_processes(2, save_by_processes, tmp_path)
    assert [(done, saved) for done, saved, _ in answers] == [([True, True], 2)] * 2
    assert not [line for line in answers[0][2] if "alarm" in line or "threads" in line], answers[0][2]
    expected = torch.load(tmp_path / "whole-0.pt", weights_only=True)
    for step, found in run_processes(2, load_sharded, tmp_path):
        assert step == 2
        assert are_tensors_equal(found, expected)
    assert [(tmp_path / f"stderr-{rank}").read_text() for rank in range(2)] == ["", ""]
