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
from typing import Any

import numpy as np
import pytest

from tests.integration.trainer.conftest import Node, Start
from tests.integration.trainer.trained import (
    KILLED,
    SLOWED,
    RunSeries,
    are_tensors_equal,
    read_until,
    stopped_at,
)
from trainer.checkpoint import layout
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


class Runs(RunSeries):
    """Successive attempts of one run in one folder, which note the samples of each step."""

    def __init__(self, start: Start, data: Path, folder: Path) -> None:
        words = ("--data", str(data), "--batch-size", str(BATCH), "--epochs", str(EPOCHS))
        super().__init__(start, folder, *words, "--checkpoint-every", "5", patch=KILLED + SLOWED)
        self.notes = folder / "notes"
        self.notes.mkdir(exist_ok=True)

    def gang(self, *more: str, processes: int = 2, **options: Any) -> Node:
        module = "tests.integration.trainer.recorded"
        return super().gang(*more, processes=processes, module=module, **options)

    def _all_words(self, more: tuple[str, ...]) -> tuple[str, ...]:
        return (str(self.notes), *super()._all_words(more))

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
        runs.end(processes=processes)
        return runs

    return run


# The agent signals one process after another: another process may report the stop to rank 0 before its signal.
SIGTERM = "(?:SIGTERM|a signal to another process)"


def train_and_stop(runs: Runs, processes: int, step: int) -> int:
    """Train and stop after this step but before the end; return the step of the stop."""
    node = runs.gang("--log-every", "1", processes=processes, SLOW_STEP=str(step))
    read_until(node, f"step={step} ")
    node.process.send_signal(signal.SIGTERM)
    return stopped_at(node.end(), SIGTERM)


def test_undisturbed_run_uses_every_sample_once_per_epoch(undisturbed: Undisturbed) -> None:
    assert undisturbed(2).count_samples() == [Counter(range(SAMPLES))] * EPOCHS


# Before and after the first checkpoint. The sum over three processes, unlike that over two, depends on their order.
@pytest.mark.parametrize(("processes", "step", "rank"), [(2, 3, 1), (2, 17, 0), (3, 17, 2)])
def test_killed_process_does_not_change_the_model(
    undisturbed: Undisturbed, create_runs: CreateRuns, processes: int, step: int, rank: int
) -> None:
    runs = create_runs("killed")
    ended = runs.end(processes=processes, restarts=1, KILL=f"{step} {rank}")
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
    ended = runs.end()
    assert f"step={step}/{STEPS}" in ended.output, "no step was lost"
    assert are_tensors_equal(runs.model(), undisturbed(2).model())


def test_stop_with_a_failed_save_names_the_last_checkpoint(create_runs: CreateRuns) -> None:
    runs = create_runs("unsaved")
    node = runs.gang("--log-every", "1", "--epochs", "10000", processes=1)
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
    runs.end(processes=1)
    assert runs.count_samples() == [Counter(range(SAMPLES))] * EPOCHS


def test_resume_with_another_batch_size_keeps_the_epochs(stopped_run: StoppedRun) -> None:
    runs = stopped_run.copy()
    runs.end("--batch-size", "96")
    assert runs.count_samples() == [Counter(range(SAMPLES))] * EPOCHS


def test_resume_with_another_seed_is_refused(undisturbed: Undisturbed) -> None:
    ended = undisturbed(2).gang("--seed", "1", processes=1).end()
    assert ended.code != 0
    assert f"error: seed: the checkpoint of step {STEPS} has seed 0, this run has 1;" in ended.output
    assert "[rank" not in ended.output, "torch prefixes each line of a process's stack trace with it"
