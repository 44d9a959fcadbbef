"""fp16 with torch's gradient scaler for CPUs: all processes skip a step that overflows in one.

The settings refuse fp16 on the CPU, where it is slow. The tests force it, with the fused AdamW as on a GPU, which
skips a step by itself (torch/amp/grad_scaler.py, `_step_supports_amp_scaling`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.test_steps import Quiet, full_tensor
from tests.integration.trainer.together import own_world, run_processes
from tests.integration.trainer.trained import KILLED, RunSeries, are_tensors_equal
from trainer.checkpoint import layout
from trainer.checkpoint.state import gather
from trainer.config import Config
from trainer.hang import Watch
from trainer.optimizer import learning_rate
from trainer.parallel import FP16
from trainer.shutdown import Stop
from trainer.stores import Directory
from trainer.trainer import Observer, Trainer
from trainer.workloads import load

pytestmark = pytest.mark.trainer


class GradientOverflow:
    """A checkpointer that puts an infinity into process 1's shard of a gradient, before the third update."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def save_if_due(self) -> float:
        return 0.0

    def wait_for_copy(self) -> float:
        if self._trainer.step == 2 and self._trainer.world.rank == 1:
            gradient: Any = next(self._trainer.network.parameters()).grad
            gradient.to_local().view(-1)[0] = torch.inf
        return 0.0


def overflow_loss(trainer: Trainer) -> None:
    """Make the third step's loss infinite, in process 1 only."""
    scale = trainer.scaler.scale

    def scale_infinity(loss: Any) -> Any:
        return scale(loss * torch.inf if trainer.step == 2 and trainer.world.rank == 1 else loss)

    trainer.scaler.scale = scale_infinity  # type: ignore[method-assign]


def overflow_in_one(parallel: str, clip: float) -> float:
    """In each process: train four steps, with an overflow of process 1 in the third; return the sum of the weights."""
    config = Config(
        steps=100, evaluate_every=1000, batch_size=4, parallel=parallel, gradient_clip=clip, compile="no"
    )
    stop = Stop(patience=20, phase=lambda: "")
    device = torch.device("cpu")
    adamw = torch.optim.AdamW

    def fused(*words: Any, **more: Any) -> torch.optim.AdamW:
        return adamw(*words, **{**more, "fused": True})

    with patch.object(torch.optim, "AdamW", fused):
        trainer = Trainer(config, own_world(), device, FP16, load("digits"), stop, cast(Watch, Quiet()))
    observer = Observer()
    if parallel == "ddp" or clip:  # clipping reads the gradients before the update
        overflow_loss(trainer)
    else:  # a shard overflows in one process, which must inform the others
        trainer.checkpointer = GradientOverflow(trainer)

    def weights() -> list[Tensor]:
        return [full_tensor(each.detach()).clone() for each in trainer.network.parameters()]

    assert trainer.run(observer, 2)
    before, scale = weights(), trainer.scaler.get_scale()
    assert trainer.run(observer, 1)
    after = weights()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)), (
        "the step must be skipped"
    )
    assert trainer.scaler.get_scale() == scale / 2
    assert (trainer.step, trainer.position) == (3, 12), "the position and the learning rate advance"
    rates = {group["lr"] for group in trainer.optimizer.param_groups}
    assert rates == {learning_rate(2, 100, trainer.recipe)}
    assert _updates(trainer) == {2.0}, "AdamW counts only its updates"
    assert trainer.run(observer, 1)
    assert (trainer.step, _updates(trainer), trainer.scaler.get_scale()) == (4, {3.0}, scale / 2)
    last = weights()
    assert all(each.isfinite().all() for each in last)
    assert not torch.equal(last[0], after[0])
    return sum(each.double().sum().item() for each in last)


def _updates(trainer: Trainer) -> set[float]:
    state = gather(trainer.model, trainer.optimizer)
    return {float(full_tensor(each)) for name, each in state.items() if name.endswith(".step")}


KINDS = (("ddp", 1.0), ("fsdp", 0.0), ("fsdp", 1.0))


def overflow_in_each_kind() -> list[float]:
    """In each process: return the sum of the weights for each kind of parallelism and gradient clip."""
    return [overflow_in_one(parallel, clip) for parallel, clip in KINDS]


def test_step_that_overflows_in_one_process_is_skipped_by_all() -> None:
    one, other = run_processes(2, overflow_in_each_kind)
    assert one == other, "both processes have the same weights"


# The initial scale is far too high and grows often: the first steps overflow, and some later ones, too.
FORCE_FP16 = """
from functools import partial
import torch
from trainer import parallel
parallel.set_precision = lambda wanted, device: parallel.FP16
adamw = torch.optim.AdamW
torch.optim.AdamW = lambda *words, **more: adamw(*words, **{**more, "fused": True})
torch.amp.GradScaler = partial(torch.amp.GradScaler, init_scale=2.0**20, growth_interval=3)
"""
STEPS = 12
WORDS = ("--steps", str(STEPS), "--batch-size", "8", "--checkpoint-every", "3", "--log-every", str(STEPS))


def read_scaler(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint's step and its state of the scaler."""
    store = Directory(folder / "checkpoints" / "run")
    step = layout.finished(store.list())[0]
    manifest = layout.Manifest.decode(store.read(f"{layout.name(step)}/{layout.MANIFEST}"))
    return step, dict(manifest.notes["scaler"])


def test_killed_run_in_fp16_restores_the_scale_bit_by_bit(start: Start, tmp_path: Path) -> None:
    runs = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        each = RunSeries(start, tmp_path / name, *WORDS, patch=FORCE_FP16 + KILLED)
        runs.append(each)
    runs[0].end()
    ended = runs[1].start_torchrun(KILL="8 1", PET_MAX_RESTARTS="1").end()
    assert ended.code == 0, ended.output
    assert "checkpoint=loaded step=" in ended.output
    states = [read_scaler(each.folder) for each in runs]
    assert states[0] == states[1]
    step, state = states[0]
    assert step == STEPS
    assert 1.0 < state["scale"] < 2.0**20, "the scale falls until the steps no longer overflow"
    assert are_tensors_equal(runs[0].model(), runs[1].model())
