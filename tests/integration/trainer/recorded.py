"""The trainer, which records the samples that each step of each process uses. The tests of resuming compare them.

    python -m torch.distributed.run ... -m tests.integration.trainer.recorded NOTES OPTION...

NOTES is a directory. A step that is repeated after a kill overwrites its note. With KILL_STEP and KILL_RANK in the
environment, that process kills itself once after that step. With SLOW_STEP, each step from that one on takes half a
second longer, so that the run has not ended when a test stops it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from torch import Tensor

from trainer import train
from trainer.data import Step
from trainer.metrics.throughput import StepClock
from trainer.process import run_and_exit
from trainer.trainer import Trainer

notes = Path(sys.argv.pop(1))
train_step = Trainer._train_step


def record_samples(self: Trainer, step: Step, clock: StepClock) -> Tensor | None:
    """Train one step, then record its samples. The first pixels of each image are its number."""
    found = train_step(self, step, clock)
    if found is None:
        return None
    numbers = [int(image[0, 0]) * 256 + int(image[0, 1]) for images, _ in step.parts for image in images]
    (notes / f"{self.step:06d}-{self.world.rank}-of-{self.world.size}").write_text(
        " ".join(map(str, [step.epoch, *numbers]))
    )
    kill = (os.environ.get("KILL_STEP"), os.environ.get("KILL_RANK"))
    if kill == (str(self.step), str(self.world.rank)) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if self.step >= int(os.environ.get("SLOW_STEP", sys.maxsize)):
        time.sleep(0.5)
    return found


Trainer._train_step = record_samples  # type: ignore[method-assign]

if __name__ == "__main__":
    run_and_exit(train.main)
