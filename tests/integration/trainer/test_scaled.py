"""fp16 with its gradient scaler, on torch's scaler for CPUs: what overflows is left out by all processes alike.

The settings refuse fp16 on the CPU, where it is slow. Here it is forced, and AdamW is the fused one, as on a GPU: that
one leaves out a step by itself (torch/amp/grad_scaler.py, `_step_supports_amp_scaling`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.test_steps import Quiet
from tests.integration.trainer.together import own_world, together
from tests.integration.trainer.trained import KILLED, Trained, same
from trainer.checkpoint import layout
from trainer.checkpoint.state import gather
from trainer.config import Config
from trainer.hang import Watch
from trainer.optimizer import learning_rate
from trainer.parallel import FP16, full_tensor
from trainer.shutdown import Stop
from trainer.stores import Directory
from trainer.trainer import Observer, Trainer
from trainer.workloads import load

pytestmark = pytest.mark.trainer


class Spoils(Observer):
    """Puts an infinity into the gradient that this process holds, before the update of the third step."""

    def __init__(self, own: Trainer) -> None:
        self._own = own

    def before_update(self) -> float:
        if self._own.step == 2 and self._own.world.rank == 1:
            gradient: Any = next(self._own.network.parameters()).grad
            gradient.to_local().view(-1)[0] = torch.inf
        return 0.0


def spoil_the_loss(own: Trainer) -> None:
    """In process 1 alone the third step's loss is infinite."""
    scale = own.scaler.scale

    def spoilt(loss: Any) -> Any:
        return scale(loss * torch.inf if own.step == 2 and own.world.rank == 1 else loss)

    own.scaler.scale = spoilt  # type: ignore[method-assign]


def overflow_in_one(parallel: str, clip: float) -> float:
    """One process: four steps, in the third of which process 1 alone overflows. Returns the sum of its weights."""
    config = Config(
        steps=100, evaluate_every=1000, batch_size=4, parallel=parallel, gradient_clip=clip, compile="no"
    )
    stop = Stop(patience=20, phase=lambda: "")
    device = torch.device("cpu")
    adamw = torch.optim.AdamW

    def fused(*words: Any, **more: Any) -> torch.optim.AdamW:
        return adamw(*words, **{**more, "fused": True})

    with patch.object(torch.optim, "AdamW", fused):
        own = Trainer(config, own_world(), device, FP16, load("digits"), stop, cast(Watch, Quiet()))
    observer = Observer()
    if parallel == "ddp" or clip:  # what clips has looked at the gradients before the update
        spoil_the_loss(own)
    else:  # a sharded gradient overflows in the part of one process: what it finds the others have to know
        observer = Spoils(own)

    def weights() -> list[Tensor]:
        return [full_tensor(each.detach()).clone() for each in own.network.parameters()]

    assert own.run(observer, 2)
    before, scale = weights(), own.scaler.get_scale()
    assert own.run(observer, 1)
    after = weights()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)), "left out"
    assert own.scaler.get_scale() == scale / 2
    assert (own.step, own.position) == (3, 12), "its samples were seen, and the rate goes on with them"
    assert own.optimizer.param_groups[0]["lr"] == learning_rate(2, 100, own.recipe)
    assert _updates(own) == {2.0}, "AdamW's own count is that of its updates"
    assert own.run(observer, 1)
    assert (own.step, _updates(own), own.scaler.get_scale()) == (4, {3.0}, scale / 2)
    last = weights()
    assert all(each.isfinite().all() for each in last)
    assert not torch.equal(last[0], after[0])
    return sum(each.double().sum().item() for each in last)


def _updates(own: Trainer) -> set[float]:
    state = gather(own.model, own.optimizer)
    return {float(full_tensor(each)) for name, each in state.items() if name.endswith(".step")}


KINDS = (("ddp", 1.0), ("fsdp", 0.0), ("fsdp", 1.0))


def overflow_in_each_kind() -> list[float]:
    """One process: the sums of the weights, by kind of parallelism and norm to clip at."""
    return [overflow_in_one(parallel, clip) for parallel, clip in KINDS]


def test_step_that_overflows_in_one_process_is_left_out_by_all() -> None:
    one, other = together(2, overflow_in_each_kind)
    assert one == other, "the same weights in both"


# The scale begins far too high and rises soon: the first steps overflow, and others do now and then.
FORCED = """
import os
if "RANK" in os.environ:
    from functools import partial
    import torch
    from trainer import parallel
    parallel.prepare = lambda wanted, device: parallel.FP16
    adamw = torch.optim.AdamW
    torch.optim.AdamW = lambda *words, **more: adamw(*words, **{**more, "fused": True})
    torch.amp.GradScaler = partial(torch.amp.GradScaler, init_scale=2.0**20, growth_interval=3)
"""
STEPS = 12
WORDS = ("--steps", str(STEPS), "--batch-size", "8", "--checkpoint-every", "3", "--log-every", str(STEPS))


def scaler_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """The newest checkpoint's step, and what it has of the scaler."""
    store = Directory(folder / "checkpoints" / "run")
    step = layout.finished(store.list())[0]
    manifest = layout.Manifest.decode(store.read(f"{layout.name(step)}/{layout.MANIFEST}"))
    return step, dict(manifest.notes["scaler"])


def test_killed_run_in_fp16_restores_the_scale_bit_by_bit(start: Start, tmp_path: Path) -> None:
    trained = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        each = Trained(start, tmp_path / name, *WORDS, patch=FORCED + KILLED)
        trained.append(each)
    trained[0].end()
    ended = trained[1].begin(KILL="8 1", PET_MAX_RESTARTS="1").end()
    assert ended.code == 0, ended.output
    assert "checkpoint=loaded step=" in ended.output
    states = [scaler_of(each.folder) for each in trained]
    assert states[0] == states[1]
    step, state = states[0]
    assert step == STEPS
    assert 1.0 < state["scale"] < 2.0**20, "it overflowed, and came to a scale at which it learns"
    assert same(trained[0].model(), trained[1].model())
