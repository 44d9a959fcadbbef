"""The whole trainer, sharded and in micro-batches: resumed bit by bit, and one kind goes on from the other."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import torch

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.trained import KILLED, SLOWED, TORCHRUN, Trained, read_until, same, stopped_at
from trainer.checkpoint import layout
from trainer.stores import Directory

pytestmark = pytest.mark.trainer

STEPS = 15
# Shares of eight samples, in pieces of three, three and two.
WORDS = ("--data", "corpus", "--sequence-length", "32", "--batch-size", "16", "--micro-batch-size", "3")
WORDS += ("--log-every", "1", "--checkpoint-every", "5")
WORDS += ("--steps", str(STEPS), "--evaluate-every", str(STEPS))
KINDS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """One training of each kind, from its begin to its end."""
    found = {}
    for kind in KINDS:
        found[kind] = Trained(start, tmp_path_factory.mktemp(kind), *WORDS)
        found[kind].end("--parallel", kind)
    return found


def losses(output: str) -> list[float]:
    return [float(each) for each in re.findall(r"^step=\d+ .*loss=(\d+\.\d+)", output, re.M)]


def test_killed_sharded_run_ends_bit_by_bit_as_undisturbed(
    undisturbed: dict[str, Trained], start: Start, tmp_path: Path
) -> None:
    """By torchrun itself, which has one store for both attempts."""
    trained = Trained(start, tmp_path, *WORDS, patch=KILLED)
    entry = (*TORCHRUN, "--max-restarts", "1", "-m", "trainer.train")
    ended = trained.begin("--parallel", "fsdp", entry=entry, KILL="13 1").end()
    assert ended.code == 0, ended.output
    assert ended.output.count("rank=0 world_size=2") == 2, "it was started anew"
    loaded = re.search(r"^checkpoint=loaded step=(\d+) position=(\d+) ", ended.output, re.M)
    assert loaded, ended.output
    assert 0 < int(loaded[1]) <= 13
    assert int(loaded[2]) == 16 * int(loaded[1])
    assert same(trained.model(), undisturbed["fsdp"].model())


def test_what_is_learnt_does_not_depend_on_the_kind(undisturbed: dict[str, Trained]) -> None:
    ddp, fsdp = (undisturbed[kind].model() for kind in KINDS)
    torch.testing.assert_close(fsdp, ddp, rtol=1e-3, atol=1e-4)


def test_each_kind_resumes_from_checkpoints_of_the_other(
    undisturbed: dict[str, Trained], start: Start, tmp_path: Path
) -> None:
    trained = Trained(start, tmp_path, *WORDS, patch=SLOWED)
    came_to = 0
    for kind, stop_at in (("ddp", 4), ("fsdp", 9)):
        node = trained.gang("--parallel", kind, SLOW_STEP=str(stop_at))
        read = read_until(node, f"step={stop_at} ")
        node.process.send_signal(signal.SIGTERM)
        ended = node.end()
        if came_to:
            assert any(line.startswith(f"checkpoint=loaded step={came_to} ") for line in read)
        came_to = stopped_at(ended, "SIGTERM")
        assert stop_at <= came_to < STEPS
    last = trained.end("--parallel", "ddp")
    assert f"checkpoint=loaded step={came_to} " in last.output
    assert len(losses(last.output)) == STEPS - came_to
    assert layout.finished(Directory(tmp_path / "checkpoints" / "run").list())[0] == STEPS
    # Weights, both of AdamW's averages and its count of steps came along: without them it ends elsewhere.
    torch.testing.assert_close(trained.model(), undisturbed["ddp"].model(), rtol=1e-3, atol=1e-4)
