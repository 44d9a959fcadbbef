"""The benchmarks' code on a small model and the CPU. The tests check what is measured, not the numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import gpu, saves, steps, trainer
from tests.benchmarks.figures import Figure
from tests.benchmarks.gpu import TINY, WHOLE, Saved
from tests.benchmarks.trainer import gpu_rows, measured, save_rows, step_rows
from tests.benchmarks.turns import LEAST, in_turns
from tests.integration.trainer.conftest import Start
from tests.integration.trainer.test_steps import create_trainer
from tests.integration.trainer.together import run_processes
from trainer.checkpoint import checkpointer
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.config import Config
from trainer.metrics.hub import Metrics
from trainer.metrics.throughput import Goodput
from trainer.reporter import Reporter

pytestmark = pytest.mark.trainer


def save_in_turns(folder: str) -> dict[str, Any]:
    """Run turns with and without a save by a background process, as on GPUs; record the step of each save."""
    store_address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    saver_class = checkpointer.Saver
    checkpointer.Saver = lambda *words, **more: saver_class(  # type: ignore[assignment,misc]
        *words, **{**more, "store_address": store_address}
    )
    config = Config(data="corpus", batch_size=4, steps=10**6, evaluate_every=10**6, owner="test")
    own = create_trainer(config)
    reporter = Reporter(own, Metrics([]), Goodput(), None)
    own.run(reporter, 5)
    saved_at: list[int] = []
    save = Checkpointer._save

    def record_step(self: Checkpointer, began: float) -> None:
        saved_at.append(own.step)
        save(self, began)

    Checkpointer._save = record_step  # type: ignore[method-assign]
    saved = Saved(own, f"{folder}/checkpoints", TINY, reporter)
    turns: list[tuple[str, int, int, list[int]]] = []

    def turn(name: str) -> float:
        began, before = own.step, len(saved_at)
        seconds = saved.with_save() if name == "saved" else saved.without_save()
        turns.append((name, began, own.step, saved_at[before:]))
        return seconds

    found = in_turns({"plain": lambda: turn("plain"), "saved": lambda: turn("saved")}, TINY.turns)
    saved.close()
    return {"turns": turns, "durable": len(saved.durable), **found}


def test_turn_with_a_save_saves_once_and_others_never(tmp_path: Path) -> None:
    (found,) = run_processes(1, save_in_turns, str(tmp_path))
    assert len(found["plain"]) == len(found["saved"]) == found["durable"] == TINY.turns >= LEAST
    for name, began, ended, saved_at in found["turns"]:
        assert ended - began == TINY.saved_steps
        assert saved_at == ([began + TINY.before_save] if name == "saved" else [])


@pytest.fixture
def forked_torchrun(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmarks start torchrun as a fork."""

    def torchrun(processes: int, module: str, *words: str) -> Any:
        entry = (
            "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", module,
        )  # fmt: skip
        return start.fork(*words, entry=entry).process

    monkeypatch.setattr(trainer, "torchrun", torchrun)


@pytest.mark.usefixtures("forked_torchrun")
def test_gpu_benchmark_of_a_small_model_measures_all_figures(tmp_path: Path) -> None:
    found = measured(1, "tests.benchmarks.gpu", tmp_path, str(tmp_path), "--tiny")
    for values in (*found["seconds"].values(), found["plain"], found["saved"], found["durable"]):
        assert len(values) >= LEAST
    assert next(row.name for row in gpu_rows(found)) == "GPT-2 124M: tokens/s of nanoGPT's way over ours"


def test_gpu_benchmark_has_the_promised_sizes() -> None:
    assert (WHOLE.model, WHOLE.saved_steps) == ("gpt-124M", 100)
    assert gpu.PRESETS[WHOLE.model].sequence == 1024
    assert WHOLE.turns >= LEAST
    assert WHOLE.before_save < WHOLE.saved_steps / 2


@pytest.mark.usefixtures("forked_torchrun")
def test_trainer_and_bare_loop_are_measured_in_turns(tmp_path: Path) -> None:
    found = {each: measured(each, "tests.benchmarks.steps", tmp_path, "--tiny") for each in (1, 2)}
    for each in found.values():
        assert {name: len(values) for name, values in each["seconds"].items()} == dict.fromkeys(
            ("ours", "bare", "again"), steps.PAIRS
        )
    missed = [row.name for row in step_rows(found) if isinstance(row, Figure) and row.missed]
    assert "a step is long enough (0.1 s over it)" in missed, "these steps are too short for a measurement"


def measure_saves(folder: str) -> Any:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    saves.LAYERS, saves.WIDTH = 2, 64
    torch.set_num_threads(1)
    return saves.measure(Path(folder), LEAST)


def test_ways_to_save_are_measured_in_turns(tmp_path: Path) -> None:
    (found,) = run_processes(1, measure_saves, str(tmp_path))
    values = [found[name] for name in ("memcpy", "torch_save", "idle_step")]
    values += [each for kind in saves.KINDS for each in found[kind].values()]
    assert [len(each) for each in values] == [LEAST] * (3 + 3 * 2)
    assert found["bytes"] == 2 * (64 * 64 + 64) * 12 + 4 * 4, (
        "weights, both averages, and AdamW's count of each"
    )
    assert len(list(save_rows(found))) == 6
