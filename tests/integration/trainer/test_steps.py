"""Steps on several processes: a resumed run continues as an uninterrupted one."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.integration.trainer.together import own_world, run_processes
from trainer.config import Config
from trainer.hang import Watch
from trainer.parallel import FP32
from trainer.shutdown import Stop
from trainer.train import load_workload, model_weights
from trainer.trainer import Observer, Trainer
from trainer.workloads import gpt

pytestmark = pytest.mark.trainer


class Quiet:
    """A watch that does nothing."""

    def enter(self, phase: str, *, long: bool = False) -> None:
        """Do nothing."""

    def beat(self) -> None:
        """Do nothing."""


def create_trainer(config: Config, stop: Stop | None = None) -> Trainer:
    stop = stop or Stop(patience=20, phase=lambda: "")
    workload = load_workload(config)
    return Trainer(config, own_world(), torch.device("cpu"), FP32, workload, stop, cast(Watch, Quiet()))


def resume_at_each_step() -> list[bool]:
    """In each process: train four steps, and repeat each of the last three with a trainer that resumes before it."""
    gpt.PRESETS["gpt-tiny"] = gpt.Shape(layers=3, heads=2, width=128, sequence=16)  # 2.6 MB: several buckets
    config = Config(data="corpus", steps=100, evaluate_every=1000, batch_size=16, bucket_megabytes=1)
    uninterrupted = create_trainer(config)
    assert uninterrupted.run(Observer(), 1)
    found = []
    for step in (1, 2, 3):
        part = create_trainer(config)
        part.network.load_state_dict(copy.deepcopy(uninterrupted.network.state_dict()))
        part.optimizer.load_state_dict(copy.deepcopy(uninterrupted.optimizer.state_dict()))
        part.resume(uninterrupted.step, uninterrupted.position)
        for each in (part, uninterrupted):
            assert each.run(Observer(), 1)
            assert (each.step, each.position) == (step + 1, 16 * (step + 1))
        found += [
            torch.equal(one, other)
            for one, other in zip(part.network.parameters(), uninterrupted.network.parameters(), strict=True)
        ]
    return found


def test_resumed_steps_of_four_processes_equal_uninterrupted() -> None:
    """DDP rebuilds its buckets before a process's second step, and a sum over four processes depends on them."""
    for found in run_processes(4, resume_at_each_step):
        assert all(found), f"{found.count(False)} of {len(found)} tensors differ"


def full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class StopAt(Stop):
    """Makes all processes agree to stop at this call."""

    def __init__(self, call: int) -> None:
        super().__init__(patience=20, phase=lambda: "")
        self._calls = call

    def agreed(self) -> bool:
        self._calls -= 1
        return self._calls <= 0


def stop_between_micro_batches(parallel: str, workload: str | None) -> None:
    """In each process: compare two steps of eight micro-batches with a run that stops in its third step."""
    config = Config(
        steps=100,
        evaluate_every=1000,
        batch_size=32,
        micro_batch_size=2,
        parallel=parallel,
        compile="no",
        workload=workload,
    )
    uninterrupted, stopped = create_trainer(config), create_trainer(config, StopAt(2 * 8 + 5))
    assert uninterrupted.run(Observer(), 2)
    assert not stopped.run(Observer())
    assert (stopped.step, stopped.position) == (2, 64)
    stopped.check_weights()
    assert all(parameter.grad is None for parameter in stopped.network.parameters())
    expected = uninterrupted.network.state_dict()
    for name, tensor in stopped.network.state_dict().items():
        assert torch.equal(full_tensor(tensor), full_tensor(expected[name])), name


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "workload", [None, *(f"tests.integration.trainer.own_models:{name}" for name in ("norm", "average"))]
)
def test_stop_between_micro_batches_keeps_the_last_step(parallel: str, workload: str | None) -> None:
    """A step of many micro-batches may be longer than the time to stop, and a forward pass may change buffers."""
    run_processes(2, stop_between_micro_batches, parallel, workload)


def gather_the_model() -> None:
    """In each process: compare the saved weights of a sharded and a plain model."""
    plain, sharded = (create_trainer(Config(parallel=parallel)) for parallel in ("ddp", "fsdp"))
    found = model_weights(sharded)
    if dist.get_rank() == 0:
        expected = plain.network.state_dict()
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert type(found[name]) is torch.Tensor, name
            assert torch.equal(found[name], tensor), name
    else:
        assert found == {}
        assert model_weights(plain) == {}


def test_sharded_model_is_gathered_in_the_first_process_only() -> None:
    run_processes(2, gather_the_model)
