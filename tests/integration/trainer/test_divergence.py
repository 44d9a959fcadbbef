"""A loss that is infinite or NaN ends the run and leaves the last good checkpoint."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.trained import RunSeries
from trainer.contract import Exit
from trainer.optimizer import Recipe
from trainer.parallel import FP16, FP32, Precision
from trainer.trainer import DivergedError, Reached, Trainer, are_finite

pytestmark = pytest.mark.trainer
NAN, INF = math.nan, math.inf


def diverges(precision: Precision, *losses: float) -> list[bool]:
    """Return for each of successive losses whether the trainer refuses it."""
    trainer = Trainer.__new__(Trainer)
    recipe = Recipe(learning_rate=1, betas=(0, 0), weight_decay=0, gradient_clip=0, warmup_steps=0)
    trainer.precision, trainer.recipe, trainer._bad_losses = precision, recipe, 0
    trainer.reached = Reached(1, 0)
    found = []
    for loss in losses:
        try:
            trainer._check_loss(loss)
        except DivergedError:
            found.append(True)
        else:
            found.append(False)
    return found


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_nan_loss_without_a_scaler_diverges(loss: float) -> None:
    assert diverges(FP32, 2.0, loss) == [False, True]


def test_two_nan_losses_in_a_row_with_a_scaler_diverge() -> None:
    assert diverges(FP16, INF, 2.0, NAN, 2.0, NAN, INF) == [False] * 5 + [True]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("number", "finite"), [(3e38, True), (NAN, False), (INF, False), (-INF, False)])
def test_are_finite_with_one_bad_number_is_false(number: float, finite: bool) -> None:
    tensors = [torch.ones(1000), torch.ones(30, 40), torch.ones(0), torch.ones(5, dtype=torch.bfloat16)]
    tensors[1][7, 31] = number
    assert are_finite(tensors, torch.device("cpu")) == finite
    assert are_finite([], torch.device("cpu"))


WORDS = ("--checkpoint-every", "10")


@pytest.fixture(scope="module")
def good(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a good checkpoint of step 10."""
    runs = RunSeries(start, tmp_path_factory.mktemp("good"), *WORDS)
    runs.end("--steps", "10", processes=1)
    return runs.folder


@pytest.mark.parametrize("log_every", [5, 1000])
def test_run_that_diverges_leaves_the_last_good_checkpoint(
    good: Path, start: Start, tmp_path: Path, log_every: int
) -> None:
    """The second update overflows at this learning rate. Without a log line before it, the next save detects that."""
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    metrics = ("--metrics-directory", str(tmp_path / "metrics"), "--log-every", str(log_every))
    runs = RunSeries(start, tmp_path, *WORDS)
    ended = runs.gang(*metrics, "--steps", "40", "--learning-rate", "1e38").end()
    assert ended.code == Exit.CONFIGURATION, ended.output
    (error,) = [line for line in ended.output.splitlines() if line.startswith("error: ") and "step" in line]
    found = re.match(
        r"error: (loss: (nan|inf)|weights: not all are numbers) at step (\d+): the loss diverged", error
    )
    assert found, error
    assert int(found[3]) == (15 if log_every == 5 else 20)
    assert "Use a lower learning_rate (it is 1e+38)" in error
    assert "Traceback" not in ended.output
    assert [each.name for each in sorted((tmp_path / "checkpoints" / "run").glob("step-*"))] == [
        "step-000000010"
    ]
    last = json.loads((tmp_path / "metrics" / "run.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["outcome"], last["exit_code"]) == ("end", "failed", Exit.CONFIGURATION)
    assert last["step"] == int(found[3])
