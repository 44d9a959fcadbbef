"""What compiles and how often. Compilation never counts as a hang."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from trainer import parallel
from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.hang import Watch
from trainer.parallel import FP32
from trainer.shutdown import Stop
from trainer.trainer import Observer, Trainer
from trainer.workloads import load
from trainer.world import World

pytestmark = pytest.mark.trainer
ALONE = World(0, 1, 0, 1, 1)
CPU = torch.device("cpu")


class RecordingWatch:
    """A watch that records its phases."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, bool]] = []

    def enter(self, phase: str, *, long: bool = False) -> None:
        self.entered.append((phase, long))

    def beat(self) -> None:
        """Do nothing."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Create a process group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def create_trainer(config: Config, watch: RecordingWatch, *, compiled: bool = True) -> Trainer:
    """Create a trainer of this process only."""
    stop, data = Stop(patience=20, phase=lambda: ""), load("digits")
    return Trainer(config, ALONE, CPU, FP32, data, stop, cast(Watch, watch), compiled=compiled)


@pytest.mark.usefixtures("group")
def test_each_batch_size_compiles_once_with_the_long_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[int] = []
    timeouts: list[float] = []

    def counted(graph: Any, _examples: Any) -> Any:
        graphs.append(len(watch.entered))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    monkeypatch.setattr("trainer.trainer.set_timeouts", lambda limit, _groups: timeouts.append(limit))
    torch._dynamo.reset()
    config = Config(compile="yes", epochs=3, batch_size=400, timeout_seconds=5, start_timeout_seconds=500)
    watch = RecordingWatch()
    assert create_trainer(config, watch).run(Observer())
    first_epoch = [
        ("compiling and the first step", True),  # 400 samples
        ("training", False),
        ("compiling for steps of another size", True),  # 238, the last of an epoch
        ("training", False),
        ("evaluation", True),
        ("training", False),
    ]
    later = [("evaluation", False), ("training", False)] * 2
    assert watch.entered == first_epoch + later
    assert graphs == [1, 3, 5], "each compilation is in a phase with the long limit"
    assert timeouts == [5, 500, 5, 500, 5] + [5] * 4


@pytest.mark.usefixtures("group")
def test_first_evaluation_has_the_long_limits_without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the test data."""
    timeouts: list[float] = []
    monkeypatch.setattr("trainer.trainer.set_timeouts", lambda limit, _groups: timeouts.append(limit))
    config = Config(epochs=2, batch_size=400, timeout_seconds=5, start_timeout_seconds=500)
    watch = RecordingWatch()
    assert create_trainer(config, watch, compiled=False).run(Observer())
    first, training = ("compiling and the first step", True), ("training", False)
    assert watch.entered == [first, training, ("evaluation", True), training, ("evaluation", False), training]
    assert timeouts == [5, 500, 5, 5, 5]


@pytest.mark.usefixtures("group")
def test_node_without_a_compiler_trains_uncompiled_or_refuses(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from torch._inductor import config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", (str(tmp_path / "no-compiler"),))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(inductor, "compile_threads", 1)
    torch._dynamo.reset()
    assert parallel.can_compile(Config(compile="auto"), ALONE, CPU) is False
    assert "compile=no rank=0 reason=" in capfd.readouterr().out
    torch._dynamo.reset()
    with pytest.raises(TrainerError, match=r"does not work here: .*compiler.*--compile no") as error:
        parallel.is_compiled(Config(compile="yes"), ALONE, CPU)
    assert error.value.code == Exit.CONFIGURATION, "a run with this code is not retried"


@pytest.mark.usefixtures("group")
def test_model_that_cannot_be_compiled_ends_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_graph: Any, _examples: Any) -> Any:
        raise ValueError("no kernel for this")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    torch._dynamo.reset()
    trainer = create_trainer(Config(compile="yes"), RecordingWatch())
    with (
        pytest.raises(TrainerError, match="no kernel for this") as error,
        parallel.report_compile_errors(),
    ):
        trainer.run(Observer())
    assert error.value.code == Exit.CONFIGURATION


@pytest.mark.parametrize(("setting", "device"), [("no", "cuda"), ("auto", "cpu")])
def test_run_without_compile_does_not_try_the_compiler(
    setting: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "can_compile", lambda *_: pytest.fail("tried"))
    assert not parallel.is_compiled(Config(compile=setting), ALONE, torch.device(device))
