"""The trainer, with a note of the samples that each step of each process used: what tests of resuming compare.

    python -m torch.distributed.run ... -m tests.integration.trainer.recorded NOTES OPTION...

NOTES is a directory. A step that is done again after a kill writes its note anew, as it makes the weights anew. With
KILL_STEP and KILL_RANK in the environment, that process kills itself when it has done that step, once. With SLOW_STEP
each step after that one takes half a second more, so that a test that stops the training there finds it still training.
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
from trainer.trainer import Observer, Trainer

notes = Path(sys.argv.pop(1))
learn = Trainer._train_step


def noted(self: Trainer, step: Step, observer: Observer) -> Tensor | None:
    """The step itself, and then its note: the first pixels of each image, which tests make the image's number."""
    found = learn(self, step, observer)
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


Trainer._train_step = noted  # type: ignore[method-assign]

if __name__ == "__main__":
    train.process()
