"""The trainer with a state of 0.5 GB and steps of half a second: what is started and stopped by `make bench-trainer`.

python -m torch.distributed.run ... -m tests.benchmarks.heavy OPTION...
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # as trainer.train does when it is the program

from trainer import train
from trainer.process import run_and_exit
from trainer.workloads import gpt

# 42.7 million weights, and two more numbers for each in AdamW; few tokens at once, since the CPU is to do it.
gpt.PRESETS["gpt-tiny"] = gpt.Shape(layers=6, heads=12, width=768, sequence=32)

if __name__ == "__main__":
    run_and_exit(train.main)
