"""A step queues its work on the GPU and never waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from tests.integration.trainer.test_steps import Quiet
from trainer.config import Config
from trainer.hang import Watch
from trainer.parallel import set_precision
from trainer.shutdown import Stop
from trainer.trainer import Observer, Trainer
from trainer.workloads import load
from trainer.world import World

pytestmark = pytest.mark.trainer


def steps_that_may_not_wait(rank: int, size: int, folder: str, data: str, precision: str) -> None:
    """In a process with one GPU: train steps in a mode in which every synchronization raises."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    config = Config(
        data=data,
        steps=100,
        evaluate_every=1000,
        log_every=1000,
        batch_size=16,
        micro_batch_size=8,
        device="cuda",
        precision=precision,
        compile="no",
    )
    stop = Stop(patience=20, phase=lambda: "")
    world = World(rank, size, rank, size, 1)
    trainer = Trainer(
        config, world, device, set_precision(precision, device), load(data), stop, cast(Watch, Quiet())
    )
    assert trainer.run(Observer(), 3)  # the first steps load libraries and allocate memory: they may wait
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert trainer.run(Observer(), 5)
        with pytest.raises(RuntimeError, match="synchronizing"):
            torch.ones(1, device=device).item()  # the mode detects a synchronization
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.step == 8
    dist.destroy_process_group()


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs an NVIDIA GPU: torch.cuda.set_sync_debug_mode detects synchronizations of CUDA only",
)
@pytest.mark.parametrize("precision", ["auto", "fp16"])
@pytest.mark.parametrize("data", ["digits", "corpus"])
def test_no_step_waits_for_the_gpu(tmp_path: Path, data: str, precision: str) -> None:
    processes.spawn(steps_that_may_not_wait, (1, str(tmp_path), data, precision), nprocs=1)
