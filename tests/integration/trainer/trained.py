"""Successive runs in one folder, mostly of two processes, which tests stop, kill and compare."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.integration.trainer.conftest import ROOT, Ended, Node, Start

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class RunSeries:
    """Successive attempts of one run under `folder`; each interpreter first runs the Python code `patch`."""

    def __init__(self, start: Start, folder: Path, *words: str, patch: str = "") -> None:
        self._start, self._words, self._patch, self.folder = start, words, patch, folder
        if patch:
            (folder / "sitecustomize.py").write_text(patch)

    def start_torchrun(
        self,
        *more: str,
        entry: tuple[str, ...] = ("-m", "trainer.entrypoint"),
        processes: int = 2,
        has_own_group: bool = False,
        **environ: str,
    ) -> Node:
        """Start an attempt under torchrun's agent. It saves checkpoints and finally the model."""
        paths = {
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "TRAINYARD_PROCESSES_PER_NODE": str(processes),
        }
        words = self._all_words(more)
        return self._start.fork(*words, entry=entry, has_own_group=has_own_group, **paths, **environ)

    def gang(self, *more: str, processes: int = 2, **options: Any) -> Node:
        """Start an attempt without torchrun. `options` are those of `Start.gang`."""
        return self._start.gang(*self._all_words(more), processes=processes, patch=self._patch, **options)

    def _all_words(self, more: tuple[str, ...]) -> tuple[str, ...]:
        places = ("--checkpoint-uri", str(self.folder / "checkpoints"), "--model-uri", str(self.folder))
        return ("--device", "cpu", "--owner", "test", *places, *self._words, *more)

    def end(self, *more: str, processes: int = 2, **options: Any) -> Ended:
        """Run an attempt without torchrun to its end."""
        ended = self.gang(*more, processes=processes, **options).end()
        assert ended.code == 0, ended.output
        return ended

    def model(self) -> dict[str, Tensor]:
        """Return the saved model."""
        found: dict[str, Tensor] = torch.load(self.folder / "run" / "model.pt", weights_only=True)
        return found


def are_tensors_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether both have the same names and bitwise equal tensors."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def read_until(node: Node, prefix: str) -> list[str]:
    """Return the log lines up to the first one with this prefix."""
    assert node.process.stdout is not None
    lines = []
    for line in node.process.stdout:
        lines.append(line)
        if line.startswith(prefix):
            return lines
    raise AssertionError(f"the node exited without a line that starts with {prefix!r}:\n{''.join(lines)}")


def stopped_at(ended: Ended, reason: str) -> int:
    """Return the step at which the run stopped and saved its checkpoint."""
    found = re.search(
        rf"^result=stopped reason={reason} steps=(\d+) position=\d+ checkpoint=(\d+)$", ended.output, re.M
    )
    assert found, ended.output
    assert found[1] == found[2]
    return int(found[1])


# A patch: with KILL="STEP RANK", that process kills itself after that step, in the first attempt only. With
# KILL_SAVES, it first waits for a checkpoint in this folder.
KILLED = """
import os
import signal
import time
from pathlib import Path
from trainer.trainer import Trainer
learn = Trainer._train_step
def killed(self, *arguments):
    found = learn(self, *arguments)
    here = os.environ.get("KILL") == f"{self.step} {self.world.rank}"
    if here and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        saves = os.environ.get("KILL_SAVES")
        while saves and not any(Path(saves).glob("**/manifest.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return found
Trainer._train_step = killed
"""

# A patch: each step from SLOW_STEP on takes half a second longer, so that the run has not ended when a test stops it.
SLOWED = """
import os
import time
from trainer.trainer import Trainer
unslowed = Trainer._train_step
def slowed(self, *arguments):
    found = unslowed(self, *arguments)
    if "SLOW_STEP" in os.environ and self.step >= int(os.environ["SLOW_STEP"]):
        time.sleep(0.5)
    return found
Trainer._train_step = slowed
"""
