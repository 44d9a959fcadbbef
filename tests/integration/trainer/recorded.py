"""The trainer, which records the samples that each step of each process uses. The tests of resuming compare them.

    python -m tests.integration.trainer.recorded NOTES OPTION...

NOTES is a directory. A step that is repeated after a kill overwrites its note.
"""

from __future__ import annotations

import sys
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
    if found is not None:
        numbers = [int(image[0, 0]) * 256 + int(image[0, 1]) for images, _ in step.parts for image in images]
        (notes / f"{self.step:06d}-{self.world.rank}-of-{self.world.size}").write_text(
            " ".join(map(str, [step.epoch, *numbers]))
        )
    return found


Trainer._train_step = record_samples  # type: ignore[method-assign]

if __name__ == "__main__":
    run_and_exit(train.main)
