"""Sharded runs with micro-batches: they resume bit by bit, also from a checkpoint of the other kind."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import torch

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.trained import (
    KILLED,
    SLOWED,
    TORCHRUN,
    RunSeries,
    are_tensors_equal,
    read_until,
    stopped_at,
)
from trainer.checkpoint import layout
from trainer.stores import Directory

pytestmark = pytest.mark.trainer

STEPS = 15
# Each process has eight samples, in micro-batches of three, three and two.
WORDS = ("--data", "corpus", "--sequence-length", "32", "--batch-size", "16", "--micro-batch-size", "3")
WORDS += ("--log-every", "1", "--checkpoint-every", "5")
WORDS += ("--steps", str(STEPS), "--evaluate-every", str(STEPS))
KINDS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunSeries]:
    """One undisturbed run of each kind."""
    found = {}
    for kind in KINDS:
        found[kind] = RunSeries(start, tmp_path_factory.mktemp(kind), *WORDS)
        found[kind].end("--parallel", kind)
    return found


def losses(output: str) -> list[float]:
    return [float(each) for each in re.findall(r"^step=\d+ .*loss=(\d+\.\d+)", output, re.M)]


def test_killed_sharded_run_ends_bit_by_bit_as_undisturbed(
    undisturbed: dict[str, RunSeries], start: Start, tmp_path: Path
) -> None:
    """torchrun keeps one store for both attempts."""
    runs = RunSeries(start, tmp_path, *WORDS, patch=KILLED)
    entry = (*TORCHRUN, "--max-restarts", "1", "-m", "trainer.train")
    ended = runs.start_torchrun("--parallel", "fsdp", entry=entry, KILL="13 1").end()
    assert ended.code == 0, ended.output
    assert ended.output.count("rank=0 world_size=2") == 2, "torchrun must restart the workers"
    loaded = re.search(r"^checkpoint=loaded step=(\d+) position=(\d+) ", ended.output, re.M)
    assert loaded, ended.output
    assert 0 < int(loaded[1]) <= 13
    assert int(loaded[2]) == 16 * int(loaded[1])
    assert are_tensors_equal(runs.model(), undisturbed["fsdp"].model())


def test_ddp_and_fsdp_train_the_same_model(undisturbed: dict[str, RunSeries]) -> None:
    ddp, fsdp = (undisturbed[kind].model() for kind in KINDS)
    torch.testing.assert_close(fsdp, ddp, rtol=1e-3, atol=1e-4)


def test_each_kind_resumes_from_checkpoints_of_the_other(
    undisturbed: dict[str, RunSeries], start: Start, tmp_path: Path
) -> None:
    runs = RunSeries(start, tmp_path, *WORDS, patch=SLOWED)
    stopped_step = 0
    for kind, stop_at in (("ddp", 4), ("fsdp", 9)):
        node = runs.gang("--parallel", kind, SLOW_STEP=str(stop_at))
        lines = read_until(node, f"step={stop_at} ")
        node.process.send_signal(signal.SIGTERM)
        ended = node.end()
        if stopped_step:
            assert any(line.startswith(f"checkpoint=loaded step={stopped_step} ") for line in lines)
        stopped_step = stopped_at(ended, "SIGTERM")
        assert stop_at <= stopped_step < STEPS
    last = runs.end("--parallel", "ddp")
    assert f"checkpoint=loaded step={stopped_step} " in last.output
    assert len(losses(last.output)) == STEPS - stopped_step
    assert layout.finished(Directory(tmp_path / "checkpoints" / "run").list())[0] == STEPS
    # The result needs the weights, both of AdamW's averages and its step count.
    torch.testing.assert_close(runs.model(), undisturbed["ddp"].model(), rtol=1e-3, atol=1e-4)
