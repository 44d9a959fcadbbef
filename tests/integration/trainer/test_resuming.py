"""Killed, stopped and resized runs end with the same model as an undisturbed run."""

from __future__ import annotations

import gzip
import re
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.integration.trainer.conftest import Ended, Node, Start
from trainer.checkpoint import layout
from trainer.contract import Exit
from trainer.stores import Directory
from trainer.workloads.images import MNIST_FILES

pytestmark = pytest.mark.trainer

SAMPLES, BATCH, EPOCHS = 500, 48, 3
STEPS = EPOCHS * -(-SAMPLES // BATCH)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST's four files; the first two pixels of a training image are its number."""
    folder, random = tmp_path_factory.mktemp("numbered"), np.random.default_rng(0)
    for count, images, labels in ((SAMPLES, *MNIST_FILES[:2]), (40, *MNIST_FILES[2:])):
        pixels = random.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        pixels[:, 0, 0], pixels[:, 0, 1] = np.divmod(np.arange(count), 256)
        digits = random.integers(0, 10, count, dtype=np.uint8)
        with gzip.open(folder / f"{images}.gz", "wb") as file:
            file.write(struct.pack(">HBBIII", 0, 8, 3, count, 8, 8) + pixels.tobytes())
        (folder / labels).write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + digits.tobytes())
    return folder


class Runs:
    """Successive attempts of one run in one folder."""

    def __init__(self, start: Start, data: Path, folder: Path) -> None:
        self._start, self._data, self.folder, self.notes = start, data, folder, folder / "notes"
        self.notes.mkdir(parents=True, exist_ok=True)

    def train(self, processes: int, *more: str, restarts: int = 0, **environ: str) -> Node:
        words = ("--data", str(self._data), "--device", "cpu", "--batch-size", str(BATCH), "--owner", "test")
        words += ("--epochs", str(EPOCHS), "--checkpoint-uri", str(self.folder / "checkpoints"))
        words += ("--model-uri", str(self.folder), "--checkpoint-every", "5", *more)
        return self._start.gang(
            str(self.notes),
            *words,
            module="tests.integration.trainer.recorded",
            processes=processes,
            restarts=restarts,
            **environ,
        )

    def model(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.load(self.folder / "run" / "model.pt", weights_only=True)
        return found

    def count_samples(self) -> list[Counter[int]]:
        """Return for each epoch how often the steps that made the model used each sample."""
        epochs = [Counter[int]() for _ in range(EPOCHS)]
        worlds: dict[str, set[str]] = {}
        for note in sorted(self.notes.iterdir(), key=lambda each: each.stat().st_mtime_ns):
            step, _, _, size = note.name.split("-")
            worlds[step] = {size} if size not in worlds.get(step, ()) else worlds[step]
        for note in self.notes.iterdir():
            step, _, _, size = note.name.split("-")
            epoch, *numbers = map(int, note.read_text().split())
            if size in worlds[step]:
                epochs[epoch - 1].update(numbers)
        return epochs


CreateRuns = Callable[[str], Runs]


@pytest.fixture(scope="module")
def create_runs(start: Start, numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> CreateRuns:
    return lambda name: Runs(start, numbered, tmp_path_factory.mktemp(name))


# An undisturbed run of this many processes.
Undisturbed = Callable[[int], Runs]


@pytest.fixture(scope="module")
def undisturbed(create_runs: CreateRuns) -> Undisturbed:
    @cache
    def run(processes: int) -> Runs:
        runs = create_runs(f"undisturbed{processes}")
        ended = runs.train(processes).end()
        assert ended.code == 0, ended.output
        return runs

    return run


def are_tensors_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# The agent signals one process after another: another process may report the stop to rank 0 before its signal.
STOPPED = "result=stopped reason=(?:SIGTERM|a signal to another process)"


def stopped_at(ended: Ended) -> int:
    found = re.search(rf"^{STOPPED} steps=(\d+) position=\d+ checkpoint=(\d+)$", ended.output, re.M)
    assert found, ended.output
    assert found[1] == found[2]
    return int(found[1])


def stop_after(node: Node, step: int) -> Ended:
    """Read the log up to a step's line, then send SIGTERM to the agent."""
    assert node.process.stdout is not None
    lines = []
    for line in node.process.stdout:
        lines.append(line)
        if line.startswith(f"step={step} "):
            break
    node.process.send_signal(signal.SIGTERM)
    ended = node.end()
    return Ended(ended.code, "".join(lines) + ended.output)


def train_and_stop(runs: Runs, processes: int, step: int) -> int:
    """Train and stop after this step but before the end; return the step of the stop."""
    node = runs.train(processes, "--log-every", "1", SLOW_STEP=str(step))
    return stopped_at(stop_after(node, step))


def test_undisturbed_run_uses_every_sample_once_per_epoch(undisturbed: Undisturbed) -> None:
    assert undisturbed(2).count_samples() == [Counter(range(SAMPLES))] * EPOCHS


# Before and after the first checkpoint. The sum over three processes, unlike that over two, depends on their order.
@pytest.mark.parametrize(("processes", "step", "rank"), [(2, 3, 1), (2, 17, 0), (3, 17, 2)])
def test_killed_process_does_not_change_the_model(
    undisturbed: Undisturbed, create_runs: CreateRuns, processes: int, step: int, rank: int
) -> None:
    runs = create_runs("killed")
    ended = runs.train(processes, restarts=1, KILL_STEP=str(step), KILL_RANK=str(rank)).end()
    assert ended.code == 0, ended.output
    assert ended.output.count(f"rank=0 world_size={processes}") == 2, "the gang must restart the workers"
    assert are_tensors_equal(runs.model(), undisturbed(processes).model())
    assert runs.count_samples() == undisturbed(processes).count_samples()


@dataclass(frozen=True)
class StoppedRun:
    """A run of two processes that stopped at `step`; `copy` copies its folder for a test that resumes."""

    step: int
    copy: Callable[[], Runs]


@pytest.fixture(scope="module")
def stopped_run(
    start: Start, numbered: Path, create_runs: CreateRuns, tmp_path_factory: pytest.TempPathFactory
) -> StoppedRun:
    runs = create_runs("stopped")
    step = train_and_stop(runs, 2, 13)

    def copy() -> Runs:
        folder = tmp_path_factory.mktemp("copy")
        shutil.copytree(runs.folder, folder, dirs_exist_ok=True)  # copies the notes' timestamps, too
        return Runs(start, numbered, folder)

    return StoppedRun(step, copy)


def test_stopped_run_that_resumes_ends_as_undisturbed(
    undisturbed: Undisturbed, stopped_run: StoppedRun
) -> None:
    runs, step = stopped_run.copy(), stopped_run.step
    assert 13 <= step < STEPS
    ended = runs.train(2).end()
    assert ended.code == 0, ended.output
    assert f"step={step}/{STEPS}" in ended.output, "no step was lost"
    assert are_tensors_equal(runs.model(), undisturbed(2).model())


def test_stop_with_a_failed_save_names_the_last_checkpoint(create_runs: CreateRuns) -> None:
    runs = create_runs("unsaved")
    node = runs.train(1, "--log-every", "1", "--epochs", "10000")
    assert node.process.stdout is not None
    for line in node.process.stdout:
        # A save is skipped during the save before: the first one may be of a later step.
        saved = re.match(r"checkpoint=saved step=(\d+) ", line)
        if saved and int(saved[1]) >= 10:
            break
    (runs.folder / "checkpoints").rename(runs.folder / "moved")
    (runs.folder / "checkpoints").write_text("in the way")
    node.process.send_signal(signal.SIGTERM)
    ended = node.end()
    good = layout.finished(Directory(runs.folder / "moved" / "run").list())[0]
    found = re.search(r"^result=stopped .* steps=(\d+) position=\d+ checkpoint=(\w+)$", ended.output, re.M)
    assert found, ended.output
    assert good >= 10
    assert found[2] == str(good), ended.output
    assert int(found[1]) > good
    assert f"alarm=checkpoint step={found[1]} " in ended.output


def test_two_three_and_one_process_use_every_sample_once(stopped_run: StoppedRun) -> None:
    runs = stopped_run.copy()
    step = train_and_stop(runs, 3, 21)
    assert stopped_run.step < step < STEPS
    ended = runs.train(1).end()
    assert ended.code == 0, ended.output
    assert runs.count_samples() == [Counter(range(SAMPLES))] * EPOCHS


def test_resume_with_another_batch_size_keeps_the_epochs(stopped_run: StoppedRun) -> None:
    runs = stopped_run.copy()
    ended = runs.train(2, "--batch-size", "96").end()
    assert ended.code == 0, ended.output
    assert runs.count_samples() == [Counter(range(SAMPLES))] * EPOCHS


def test_resume_with_another_seed_is_refused(undisturbed: Undisturbed) -> None:
    ended = undisturbed(2).train(1, "--seed", "1").end()
    assert ended.code != 0
    assert f"error: seed: the checkpoint of step {STEPS} has seed 0, this run has 1;" in ended.output
    assert "[rank" not in ended.output, "torch prefixes each line of a process's stack trace with it"


REFUSES = """
import os
if os.environ["RANK"] == "1":
    import trainer.parallel as p
    from trainer.contract import Exit, TrainerError
    def refuse(*_):
        raise TrainerError(Exit.NO_CUDA, "device: of this process alone")
    p.set_precision = refuse
"""


def test_process_that_fails_alone_logs_why_and_the_others_who(start: Start) -> None:
    ended = start.gang("--device", "cpu", processes=2, patch=REFUSES).end()
    assert ended.code == Exit.NO_CUDA, ended.output
    assert ended.output.count("error: device: of this process alone") == 1
    assert "error: process 1 failed. See its log" in ended.output
