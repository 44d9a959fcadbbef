"""A training's steps on several processes: what goes on from one is what the next would have been."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
import torch.distributed as dist

from tests.integration.trainer.together import own_world, together
from trainer.config import Config
from trainer.hang import Watch
from trainer.parallel import FP32
from trainer.parallel import full_tensor as whole_tensor
from trainer.shutdown import Stop
from trainer.train import model_weights
from trainer.trainer import Observer, Trainer
from trainer.workloads import gpt, load

pytestmark = pytest.mark.trainer


class Quiet:
    """A watch that watches nothing."""

    def enter(self, phase: str, *, long: bool = False) -> None:
        """Nothing."""

    def beat(self) -> None:
        """Nothing."""


def training(config: Config, stop: Stop | None = None) -> Trainer:
    stop = stop or Stop(patience=20, phase=lambda: "")
    workload = load(config.data)
    return Trainer(config, own_world(), torch.device("cpu"), FP32, workload, stop, cast(Watch, Quiet()))


def go_on_at_each_step() -> list[bool]:
    """One process: four steps in one go, and each of the last three by a process that goes on from the one before."""
    gpt.PRESETS["gpt-tiny"] = gpt.Shape(layers=3, heads=2, width=128, sequence=16)  # 2.6 MB: several buckets
    config = Config(data="corpus", steps=100, evaluate_every=1000, batch_size=16, bucket_megabytes=1)
    full_tensor = training(config)
    state = torch.get_rng_state()
    assert full_tensor.run(Observer(), 1)
    assert torch.equal(torch.get_rng_state(), state)
    found = []
    for step in (1, 2, 3):
        part = training(config)
        part.network.load_state_dict(copy.deepcopy(full_tensor.network.state_dict()))
        part.optimizer.load_state_dict(copy.deepcopy(full_tensor.optimizer.state_dict()))
        part.resume(full_tensor.step, full_tensor.position)
        for each in (part, full_tensor):
            assert each.run(Observer(), 1)
            assert (each.step, each.position) == (step + 1, 16 * (step + 1))
        found += [
            torch.equal(one, other)
            for one, other in zip(part.network.parameters(), full_tensor.network.parameters(), strict=True)
        ]
    return found


def test_who_goes_on_sums_over_four_processes_as_who_never_stopped() -> None:
    """DDP lays out its buckets anew before a process's second step, and a sum of four depends on them."""
    for found in together(4, go_on_at_each_step):
        assert all(found), f"{found.count(False)} of {len(found)} tensors differ"


class StopAt(Stop):
    """All processes agree to stop at the same call, this one."""

    def __init__(self, call: int) -> None:
        super().__init__(patience=20, phase=lambda: "")
        self._calls = call

    def agreed(self) -> bool:
        self._calls -= 1
        return self._calls <= 0


def stop_between_micro_batches(parallel: str) -> None:
    """One process: two steps of eight micro-batches each, and the same, told to stop in the third and gone on with."""
    config = Config(
        steps=100, evaluate_every=1000, batch_size=16, micro_batch_size=1, parallel=parallel, compile="no"
    )
    full_tensor, stopped = training(config), training(config, StopAt(2 * 8 + 5))
    assert full_tensor.run(Observer(), 2)
    assert not stopped.run(Observer())
    assert (stopped.step, stopped.position) == (2, 32)
    stopped.check_weights()
    assert all(parameter.grad is None for parameter in stopped.network.parameters())
    for one, other in zip(stopped.network.parameters(), full_tensor.network.parameters(), strict=True):
        assert torch.equal(whole_tensor(one), whole_tensor(other))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_stop_between_two_micro_batches_leaves_the_training_at_its_last_step(parallel: str) -> None:
    """A step of many micro-batches may take longer than there is time to stop."""
    together(2, stop_between_micro_batches, parallel)


def gather_the_model() -> None:
    """One process: what is saved of a sharded model, against the same one that is not sharded."""
    plain, sharded = (training(Config(parallel=parallel)) for parallel in ("ddp", "fsdp"))
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


def test_a_sharded_model_is_whole_in_the_first_process_alone() -> None:
    together(2, gather_the_model)
