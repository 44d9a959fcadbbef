"""Each step exchanges its gradients once, with any number of micro-batches. The tests count the collectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from tests.integration.trainer.test_steps import create_trainer
from tests.integration.trainer.together import run_processes
from trainer.config import Config
from trainer.trainer import Observer
from trainer.workloads import gpt

pytestmark = pytest.mark.trainer

STEPS = 3
# A batch of 16 is eight samples for each of two processes.
PARTS = {8: 1, 2: 4}


def config(micro_batch: int, parallel: str) -> Config:
    return Config(
        data="corpus",
        steps=100,
        evaluate_every=1000,
        log_every=1000,
        batch_size=16,
        micro_batch_size=micro_batch,
        parallel=parallel,
        bucket_megabytes=1,
        compile="no",
    )


def count_buckets(micro_batch: int) -> tuple[dict[int, int], int]:
    """In each process: count the exchanges of each DDP bucket, and the forward passes."""
    gpt.PRESETS["gpt-tiny"] = gpt.Shape(layers=3, heads=2, width=128, sequence=16)  # 2.6 MB: several buckets
    trainer = create_trainer(config(micro_batch, "ddp"))
    assert isinstance(trainer.model, DistributedDataParallel)
    sent, passes = Counter[int](), [0]
    trainer._lay_out_buckets()  # an extra pass without an update, before the first step

    def counted(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent[bucket.index()] += 1
        return allreduce_hook(group, bucket)

    counted.__annotations__.clear()  # DDP compares annotations, and here they are strings
    trainer.model.register_comm_hook(None, counted)
    trainer.model.register_forward_hook(lambda *_: passes.append(passes.pop() + 1))
    trainer._lay_out_buckets = lambda: None  # type: ignore[method-assign]
    assert trainer.run(Observer(), STEPS)
    return sent, passes[0]


@pytest.mark.parametrize("micro_batch", list(PARTS))
def test_each_bucket_is_exchanged_once_in_a_step(micro_batch: int) -> None:
    for sent, passes in run_processes(2, count_buckets, micro_batch):
        assert passes == STEPS * PARTS[micro_batch]
        assert len(sent) > 1, "several buckets"
        assert set(sent.values()) == {STEPS}


def count_scatters() -> dict[int, tuple[int, int]]:
    """In each process: count FSDP2's collectives in steps of one and of four micro-batches."""
    found = {}
    for micro_batch in PARTS:
        trainer = create_trainer(config(micro_batch, "fsdp"))
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            assert trainer.run(Observer(), STEPS)
        names = Counter(event.name for event in profiled.events())
        found[micro_batch] = (names["c10d::_allgather_base_"], names["c10d::_reduce_scatter_base_"])
    return found


def test_sharded_model_reduces_its_gradients_once_in_a_step() -> None:
    found, _ = run_processes(2, count_scatters)
    # gpt-tiny has three FSDP units: both blocks and the root.
    fetched, summed = found[8]
    assert summed == STEPS * 3
    assert found[2] == (fetched * PARTS[2], summed), (
        "each pass gathers the weights; a step reduces the gradients once"
    )
