"""The example of a user's own model, trained and resumed at another world size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.test_steps import create_trainer
from tests.integration.trainer.together import run_processes
from tests.integration.trainer.trained import KILLED, RunSeries, are_tensors_equal
from trainer.config import Config
from trainer.contract import Exit
from trainer.trainer import Observer

pytestmark = pytest.mark.trainer

OPTIONS = ("--workload", "examples.trainer.spirals:workload", "--device", "cpu", "--learning-rate", "0.01")


def test_own_model_trains_and_resumes_with_more_processes(start: Start, tmp_path: Path) -> None:
    options = (*OPTIONS, "--checkpoint-uri", str(tmp_path), "--evaluate-every", "500", "--steps")
    first = start.gang(*options, "100", processes=1).end()
    assert first.code == 0, first.output
    second = start.gang(*options, "600", "--parallel", "fsdp", processes=2).end()
    assert second.code == 0, second.output
    assert "checkpoint=loaded step=100 " in second.output, second.output
    accuracy = re.search(r"result=succeeded test_accuracy=([\d.]+) steps=600", second.output)
    assert accuracy, second.output
    assert float(accuracy[1]) > 0.95


MODELS = "tests.integration.trainer.own_models"
STEPS = ("--steps", "16", "--batch-size", "16", "--evaluate-every", "3", "--checkpoint-every", "2")


@pytest.mark.parametrize(
    ("name", "parallel", "processes"),
    [
        ("unused", "ddp", 1),
        ("unused", "fsdp", 2),
        ("dropout", "ddp", 1),
        ("dropout", "ddp", 3),
        ("dropout", "fsdp", 2),
        ("norm", "ddp", 3),
        ("norm", "fsdp", 2),
    ],
)
def test_killed_run_of_an_own_model_ends_bitwise_as_undisturbed(
    start: Start, tmp_path: Path, name: str, parallel: str, processes: int
) -> None:
    models = []
    for kill in ("", f"9 {processes - 1}"):
        folder = tmp_path / (kill or "undisturbed")
        folder.mkdir()
        words = ("--workload", f"{MODELS}:{name}", "--parallel", parallel, *STEPS)
        runs = RunSeries(start, folder, *words, patch=KILLED)
        ended = runs.end(processes=processes, restarts=1, KILL=kill, KILL_SAVES=str(folder))
        assert ("checkpoint=loaded" in ended.output) == bool(kill), ended.output
        models.append(runs.model())
    assert are_tensors_equal(*models)


def train_in_units(name: str, parallel: str) -> tuple[list[bool], float]:
    """In each process: train three steps; return which blocks are units of FSDP2, and the loss of an evaluation."""
    config = Config(
        workload=f"{MODELS}:{name}", parallel=parallel, batch_size=16, steps=3, evaluate_every=100
    )
    trainer = create_trainer(config)
    assert trainer.run(Observer(), 3)
    result = trainer.evaluate()
    assert result is not None
    blocks = getattr(trainer.network, "blocks", None)
    units = [isinstance(each, FSDPModule) for each in blocks] if isinstance(blocks, nn.ModuleList) else []
    return units, result.loss


@pytest.mark.parametrize(("name", "units"), [("blocks", [True, False, True, False, False]), ("numbered", [])])
def test_fsdp_shards_each_own_block_of_a_users_model(name: str, units: list[bool]) -> None:
    ((found, loss), _) = run_processes(2, train_in_units, name, "fsdp")
    assert found == units
    ((found, expected), _) = run_processes(2, train_in_units, name, "ddp")
    assert not any(found)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_parameter_without_gradient_under_ddp_is_refused(start: Start) -> None:
    for processes in (2, 3):
        words = ("--workload", f"{MODELS}:unused", "--device", "cpu", *STEPS)
        ended = start.gang(*words, processes=processes).end()
        assert ended.code == Exit.CONFIGURATION, ended.output
        assert "model: 2 parameters have no gradient, the first is 'network.unused.weight'" in ended.output
        assert "Traceback" not in ended.output


@pytest.mark.parametrize("uri", ["--model-uri", "--checkpoint-uri", None])
def test_state_that_cannot_be_saved_is_refused_at_the_start(
    start: Start, tmp_path: Path, uri: str | None
) -> None:
    words = ("--workload", f"{MODELS}:extra", "--device", "cpu", *STEPS)
    ended = start.gang(*words, *((uri, str(tmp_path)) if uri else ())).end()
    assert ended.code == (Exit.CONFIGURATION if uri else Exit.SUCCEEDED), ended.output
    line = "error: model: 'network._extra_state' of its state is a dict; it must be a tensor"
    assert (line in ended.output) == (uri is not None), ended.output
    assert "Traceback" not in ended.output


class Masks(nn.Module):
    """Records the dropout masks of each forward pass in training."""

    def __init__(self, network: nn.Module, found: list[Tensor]) -> None:
        super().__init__()
        self.network, self.dropout, self.found = network, nn.Dropout(), found

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        mask = self.dropout(torch.ones(64))
        if self.training:
            self.found.append(mask)
        loss, sums = self.network(inputs, targets)
        return loss * mask.mean(), sums


def record_masks() -> list[Tensor]:
    """In each process: return the masks of three steps of two micro-batches, with evaluations between them."""
    found: list[Tensor] = []
    trainer = create_trainer(Config(steps=3, batch_size=16, micro_batch_size=4, evaluate_every=2))
    trainer.model = Masks(trainer.model, found)
    assert trainer.run(Observer())
    return found


def test_each_rank_step_and_micro_batch_draws_its_own_masks() -> None:
    masks = [mask for found in run_processes(2, record_masks) for mask in found]
    assert len(masks) == 2 * 3 * 2
    assert len({tuple(mask.tolist()) for mask in masks}) == len(masks)
