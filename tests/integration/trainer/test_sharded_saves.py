"""A sharded model saved by background processes, as GPUs have them: each gets its rank's part and the mesh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.integration.trainer.checkpoints import load, optimizer_of, same, saver, train
from tests.integration.trainer.test_checkpoints_together import group, sharded
from tests.integration.trainer.together import together
from trainer.checkpoint import state
from trainer.checkpoint.load import read
from trainer.stores import Directory

pytestmark = pytest.mark.trainer


def whole(tensors: state.State) -> state.State:
    return {
        name: each.full_tensor() if isinstance(each, DTensor) else each.clone()
        for name, each in tensors.items()
    }


def save_by_processes(path: Path) -> tuple[list[bool], int, list[str]]:
    """Two saves by one background process beside each rank, with a step between; what was saved goes to a file."""
    said: list[str] = []
    with (path / f"stderr-{dist.get_rank()}").open("wb") as errors:
        os.dup2(errors.fileno(), 2)  # the background processes inherit it
    model = sharded()
    optimizer = optimizer_of(model)
    meeting = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    own = saver(Directory(path), group(), meeting=meeting, log_line=said.append)
    done = []
    for step in (1, 2):
        train(model, optimizer, step, step)
        tensors = state.gather(model, optimizer)
        if step == 1:
            own.warm(tensors)
        own.finish()  # the process has started
        own.save(tensors, step, 16 * step)
        own.staged()
        done.append(own.finish())
    torch.save(whole(tensors), path / f"whole-{dist.get_rank()}.pt")
    own.close()
    return done, own.counts.saved, said


def load_sharded(path: Path) -> tuple[int, state.State]:
    model = sharded()
    optimizer = optimizer_of(model)
    own_group = group()
    found = load(Directory(path), own_group, model)
    assert found is not None
    read(found, model, optimizer, own_group)
    return found.manifest.step, whole(state.gather(model, optimizer))


def test_background_processes_save_a_sharded_model(tmp_path: Path) -> None:
    answers = together(2, save_by_processes, tmp_path)
    assert [(done, saved) for done, saved, _ in answers] == [([True, True], 2)] * 2
    assert not [line for line in answers[0][2] if "alarm" in line or "threads" in line], answers[0][2]
    expected = torch.load(tmp_path / "whole-0.pt", weights_only=True)
    for step, found in together(2, load_sharded, tmp_path):
        assert step == 2
        assert same(found, expected)
    assert [(tmp_path / f"stderr-{rank}").read_text() for rank in range(2)] == ["", ""]
