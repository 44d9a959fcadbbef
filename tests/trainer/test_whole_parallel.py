"""The whole trainer, sharded and in micro-batches: resumed bit by bit, and one kind goes on from the other."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import Start
from tests.trainer.trained import KILLED, Trained, read_until, same, stopped_at
from trainer.checkpoint import layout
from trainer.stores import Directory

pytestmark = pytest.mark.trainer

STEPS = 40
# Shares of eight samples, in pieces of three, three and two.
WORDS = ("--data", "corpus", "--batch-size", "16", "--micro-batch-size", "3", "--log-every", "1")
WORDS += ("--steps", str(STEPS), "--checkpoint-every", "5", "--evaluate-every", str(STEPS))
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_is_begun_anew_and_ends_bit_by_bit_as_one_that_was_not(
    undisturbed: dict[str, Trained], start: Start, tmp_path: Path, kind: str
) -> None:
    trained = Trained(start, tmp_path, *WORDS, patch=KILLED)
    ended = trained.end("--parallel", kind, KILL="28 1", PET_MAX_RESTARTS="1")
    assert ended.output.count("rank=0 world_size=2") == 2, "it was started anew"
    loaded = re.search(r"^checkpoint=loaded step=(\d+) position=(\d+) ", ended.output, re.M)
    assert loaded, ended.output
    assert 0 < int(loaded[1]) <= 28
    assert int(loaded[2]) == 16 * int(loaded[1])
    assert same(trained.model(), undisturbed[kind].model())


def test_what_is_learnt_does_not_depend_on_the_kind(undisturbed: dict[str, Trained]) -> None:
    ddp, fsdp = (undisturbed[kind].model() for kind in KINDS)
    torch.testing.assert_close(fsdp, ddp, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("first", "second"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_one_kind_goes_on_from_the_checkpoints_of_the_other(
    undisturbed: dict[str, Trained], start: Start, tmp_path: Path, first: str, second: str
) -> None:
    trained = Trained(start, tmp_path, *WORDS)
    node = trained.begin("--parallel", first)
    read_until(node, "step=12 ")
    node.process.send_signal(signal.SIGTERM)
    step = stopped_at(node.end(), "SIGTERM")
    assert 12 <= step < STEPS
    went_on = trained.end("--parallel", second)
    assert f"checkpoint=loaded step={step} " in went_on.output
    assert len(losses(went_on.output)) == STEPS - step
    # Weights, both of AdamW's averages and its count of steps came along: without them it ends elsewhere.
    torch.testing.assert_close(trained.model(), undisturbed[first].model(), rtol=1e-3, atol=1e-4)
    exact = trained.model()
    assert layout.finished(Directory(tmp_path / "checkpoints" / "run").list())[0] == STEPS
    again = trained.end("--parallel", first)
    assert "nothing left to train" in again.output
    assert same(trained.model(), exact), "and nothing is lost on the way back"
