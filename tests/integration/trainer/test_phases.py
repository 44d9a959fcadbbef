"""A stop in each phase of the trainer: the run ends soon with 24 and resumes from its last step."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import Ended, Node, Start
from tests.integration.trainer.test_stopping import wait_for
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


class SlowRun:
    """A run of two processes with checkpoints, in which one phase is slow."""

    def __init__(
        self,
        start: Start,
        folder: Path,
        phase: str,
        seconds: float,
        *words: str,
        processes: int = 2,
        **environ: str,
    ) -> None:
        self._start, self._folder, self._words, self._environ = start, folder, words, environ
        self.node = self.train(phase, seconds, processes=processes)

    def train(self, phase: str = "none", seconds: float = 0, *, processes: int) -> Node:
        options = (
            "--checkpoint-uri",
            str(self._folder / "checkpoints"),
            "--owner",
            "test",
            "--device",
            "cpu",
        )
        environ = {
            "TRAINYARD_MODEL_URI": str(self._folder / "model"),
            "SLOW_PHASE": phase,
            "SLOW_SECONDS": str(seconds),
            "NOTES": str(self._folder),
            **self._environ,
        }
        return self._start.gang(*options, *self._words, processes=processes, patch=SLOWED, **environ)

    def entered(self, rank: int) -> int:
        """Wait until this rank is in the phase; return its process id."""
        note = self._folder / str(rank)
        wait_for(lambda: note.exists() or self.node.process.poll() is not None)
        assert note.exists(), self.node.end().output
        return int(note.read_text())


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
    slow_run = SlowRun(start, tmp_path, phase, 1000, "--epochs", "1")
    for rank in range(2):
        slow_run.entered(rank)
    ended = stop(slow_run.node)
    assert f"error: stop requested by SIGTERM 5 s ago, still in this phase: {phase};" in ended.output


def test_stop_of_one_process_during_loading_stops_all(start: Start, tmp_path: Path) -> None:
    words = ("--epochs", "1000")
    slow_run = SlowRun(start, tmp_path, "loading the data and the model", 1, *words, PROMPT_SECONDS="60")
    os.kill(slow_run.entered(1), signal.SIGTERM)
    ended = slow_run.node.end()
    assert ended.code == Exit.STOPPED, ended.output
    expected = "result=stopped reason=a signal to another process steps=0 position=0 checkpoint=none"
    assert expected in ended.output.splitlines()


def test_stops_in_evaluation_and_model_save_lose_no_step(start: Start, tmp_path: Path) -> None:
    """Four attempts of one run: each resumes from the stop of the one before."""
    words = ("--steps", "27")
    slow_run = SlowRun(start, tmp_path, "evaluation", 1, *words)
    slow_run.entered(0)
    ended = stop(slow_run.node)
    expected = r"^result=stopped reason=SIGTERM steps=23 position=1438 checkpoint=23$"
    assert re.search(expected, ended.output, re.M), ended.output

    (tmp_path / "0").unlink()
    slow_run = SlowRun(start, tmp_path, "saving the model", 1000, *words)
    slow_run.entered(0)
    ended = stop(slow_run.node)
    assert "step=23/27" in ended.output
    assert not (tmp_path / "model").exists()

    resumed = slow_run.train(processes=1).end()
    assert resumed.code == 0, resumed.output
    expected = (
        "nothing left to train: the checkpoint is of step 27, and the last step of this run is 27; "
        "the model is evaluated and saved"
    )
    assert resumed.output.splitlines().count(expected) == 1
    assert (tmp_path / "model" / "run" / "model.pt").exists()

    fewer = SlowRun(start, tmp_path, "none", 0, "--steps", "5", processes=1).node.end()
    assert fewer.code == 0, fewer.output
    assert expected.replace("is 27;", "is 5;") in fewer.output.splitlines()
    assert "result=succeeded" in fewer.output
    assert "steps=27" in fewer.output


@pytest.mark.parametrize("entry", ["trainer.entrypoint", "torchrun"])
def test_notice_ends_a_torchrun_that_would_restart(start: Start, tmp_path: Path, entry: str) -> None:
    words = ("--device", "cpu", "--epochs", "100000", "--notice-file", str(tmp_path / "notice"))
    if entry == "torchrun":
        torchrun = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "-m", "trainer.train")
        node = start.fork(*torchrun, *words, entry=("-m", "torch.distributed.run"))
    else:
        node = start.fork(*words, PET_MAX_RESTARTS="3")
    assert node.process.stdout is not None
    while not node.process.stdout.readline().startswith("step="):
        assert node.process.poll() is None
    (tmp_path / "notice").touch()
    ended = node.end()
    assert ended.code == (Exit.STOPPED if entry == "trainer.entrypoint" else 1), ended.output
    assert re.search(r"^result=stopped reason=(the|a) notice ", ended.output, re.M), ended.output
    assert "rank=0 world_size=" not in ended.output, "torchrun must not restart the workers"
