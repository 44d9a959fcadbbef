"""What compiles, how often, and that nothing which compiles is taken for a hang."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from trainer.config import Config
from trainer.hang import Watch
from trainer.precision import FP32
from trainer.stopping import Stop
from trainer.training import Observer, Training
from trainer.workloads import load
from trainer.world import World

pytestmark = pytest.mark.trainer


class Noted:
    """A watch that writes down what it is told."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, bool]] = []

    def enter(self, phase: str, *, long: bool = False) -> None:
        self.entered.append((phase, long))

    def beat(self) -> None:
        """Nothing."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_each_size_of_batch_compiles_once_and_has_the_long_limit_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[int] = []
    timeouts: list[float] = []

    def counted(graph: Any, _examples: Any) -> Any:
        graphs.append(len(watch.entered))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    monkeypatch.setattr("trainer.training.set_timeouts", lambda limit, _groups: timeouts.append(limit))
    torch._dynamo.reset()
    config = Config(compile="yes", epochs=3, batch_size=400, timeout_seconds=5, start_timeout_seconds=500)
    watch, stop = Noted(), Stop(patience=20, phase=lambda: "")
    training = Training(
        config, World(0, 1, 0, 1, 1), torch.device("cpu"), FP32, load("digits"), stop, cast(Watch, watch)
    )
    assert training.run(Observer())
    compiling = [
        ("compiling and the first step", True),  # 400 samples
        ("training", False),
        ("compiling for steps of another size", True),  # 238, the last of an epoch
        ("training", False),
        ("evaluation", True),
        ("training", False),
    ]
    later = [("evaluation", False), ("training", False)] * 2
    assert watch.entered == compiling + later
    assert graphs == [1, 3, 5], "each of them in a phase that has time"
    assert timeouts == [5, 500, 5, 500, 5] + [5] * 4
