"""A stop in each phase of the trainer: the run ends soon with 24 and resumes from its last step."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.trainer.conftest import Ended, Node, Start
from tests.integration.trainer.test_stopping import wait_for
from tests.integration.trainer.trained import RunSeries, read_until
from trainer.contract import Exit

pytestmark = pytest.mark.trainer

# The phase SLOW_PHASE writes a note and blocks for SLOW_SECONDS in one C call.
SLOWED = """
import os
import time
from pathlib import Path
from trainer.hang import Watch
enter = Watch.enter
def entered(self, phase, *, long=False):
    enter(self, phase, long=long)
    if phase == os.environ["SLOW_PHASE"]:
        note = Path(os.environ["NOTES"]) / os.environ["RANK"]
        note.with_suffix(".new").write_text(str(os.getpid()))
        note.with_suffix(".new").rename(note)
        time.sleep(float(os.environ["SLOW_SECONDS"]))
Watch.enter = entered
if "PROMPT_SECONDS" in os.environ:
    from trainer import shutdown
    shutdown.PROMPT_SECONDS = float(os.environ["PROMPT_SECONDS"])
"""
MAX_SECONDS = 10.0


class SlowRuns(RunSeries):
    """Attempts of one run, in which one phase is slow."""

    def __init__(self, start: Start, folder: Path, *words: str) -> None:
        super().__init__(start, folder, *words, patch=SLOWED)

    def slow(self, phase: str, seconds: float, *more: str, **options: Any) -> Node:
        """Start an attempt in which this phase takes so long."""
        slow = {"SLOW_PHASE": phase, "SLOW_SECONDS": str(seconds), "NOTES": str(self.folder)}
        return self.gang(*more, **slow, **options)

    def entered(self, node: Node, rank: int) -> int:
        """Wait until this rank is in the phase; return its process id."""
        note = self.folder / str(rank)
        wait_for(lambda: note.exists() or node.process.poll() is not None)
        assert note.exists(), node.end().output
        pid = int(note.read_text())
        note.unlink()
        return pid


def stop(node: Node) -> Ended:
    """Send SIGTERM to the agent, which forwards it."""
    start_time = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    ended = node.end()
    assert ended.code == Exit.STOPPED, ended.output
    assert time.monotonic() - start_time <= MAX_SECONDS
    assert "Traceback" not in ended.output
    return ended


def test_stop_with_nothing_to_save_waits_for_no_phase(start: Start, tmp_path: Path) -> None:
    phase = "compiling and the first step"
    runs = SlowRuns(start, tmp_path, "--epochs", "1")
    node = runs.slow(phase, 1000)
    for rank in range(2):
        runs.entered(node, rank)
    ended = stop(node)
    assert f"error: stop requested by SIGTERM 5 s ago, still in this phase: {phase};" in ended.output


def test_stop_of_one_process_during_loading_stops_all(start: Start, tmp_path: Path) -> None:
    runs = SlowRuns(start, tmp_path, "--epochs", "1000")
    node = runs.slow("loading the data and the model", 1, PROMPT_SECONDS="60")
    os.kill(runs.entered(node, 1), signal.SIGTERM)
    ended = node.end()
    assert ended.code == Exit.STOPPED, ended.output
    expected = "result=stopped reason=a signal to another process steps=0 position=0 checkpoint=none"
    assert expected in ended.output.splitlines()


def test_stops_in_evaluation_and_model_save_lose_no_step(start: Start, tmp_path: Path) -> None:
    """Four attempts of one run: each resumes from the stop of the one before."""
    runs, model = SlowRuns(start, tmp_path), tmp_path / "run" / "model.pt"
    node = runs.slow("evaluation", 1, "--steps", "27")
    runs.entered(node, 0)
    ended = stop(node)
    expected = r"^result=stopped reason=SIGTERM steps=23 position=1438 checkpoint=23$"
    assert re.search(expected, ended.output, re.M), ended.output

    node = runs.slow("saving the model", 1000, "--steps", "27")
    runs.entered(node, 0)
    ended = stop(node)
    assert "step=23/27" in ended.output
    assert not model.exists()

    for steps in ("27", "5"):
        ended = runs.slow("none", 0, "--steps", steps, processes=1).end()
        assert ended.code == 0, ended.output
        expected = (
            f"nothing left to train: the checkpoint is of step 27, and the last step of this run is {steps}; "
            "the model is evaluated and saved"
        )
        assert ended.output.splitlines().count(expected) == 1
        assert "result=succeeded" in ended.output
        assert "steps=27" in ended.output
        assert model.exists()


@pytest.mark.parametrize("entry", ["trainer.entrypoint", "torchrun"])
def test_notice_ends_a_torchrun_that_would_restart(start: Start, tmp_path: Path, entry: str) -> None:
    words = ("--device", "cpu", "--epochs", "100000", "--notice-file", str(tmp_path / "notice"))
    if entry == "torchrun":
        torchrun = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "-m", "trainer.train")
        node = start.fork(*torchrun, *words, entry=("-m", "torch.distributed.run"))
    else:
        node = start.fork(*words, PET_MAX_RESTARTS="3")
    read_until(node, "step=")
    (tmp_path / "notice").touch()
    ended = node.end()
    assert ended.code == (Exit.STOPPED if entry == "trainer.entrypoint" else 1), ended.output
    assert re.search(r"^result=stopped reason=(the|a) notice ", ended.output, re.M), ended.output
    assert "rank=0 world_size=" not in ended.output, "torchrun must not restart the workers"
