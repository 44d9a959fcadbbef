"""Our loop and a bare one, in turns, in the same processes: seconds of each turn, as JSON from rank 0.

    torchrun --standalone --nproc-per-node 2 -m tests.benchmarks.steps OUTPUT.json [--tiny]

The bare loop is what one would write without this project: DistributedDataParallel around the same network, the same
AdamW and clipping on the same batches. It agrees on no stop, watches for no hang, tells and measures nothing. `--tiny`
tries the code in seconds; its numbers mean nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.joined import joined, plain_adamw
from tests.benchmarks.turns import in_turns
from trainer.config import Config
from trainer.data import Cursor, share
from trainer.metrics.hub import Metrics
from trainer.metrics.throughput import Goodput
from trainer.parallel import FP32
from trainer.reporter import Reporter
from trainer.trainer import Trainer
from trainer.workloads import Workload, load
from trainer.world import World

PAIRS = 32
# Steps of a turn: a turn of ours begins with an empty queue of batches, which a training does once.
STEPS = 4
WARM_UP = 3
# The bare loop judges nothing, so that ours must not either.
CONFIG = Config(
    data="corpus",
    batch_size=192,
    device="cpu",
    steps=10**6,
    log_every=2,
    evaluate_every=10**6,
    checkpoint_every=10**6,
)


class Bare:
    """The loop to compare with."""

    def __init__(self, config: Config, world: World, workload: Workload) -> None:
        torch.manual_seed(config.seed)
        self.network = workload.model()
        self.model: nn.Module = DistributedDataParallel(self.network) if world.size > 1 else self.network
        self.optimizer = plain_adamw(self.network, torch.device("cpu"))
        self.cursor = Cursor(workload.train_samples, config.seed, config.batch_size)
        self.workload, self.world, self.position = workload, world, 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            batch = self.cursor.batch(self.position)
            inputs, targets = self.workload.batch(
                share(batch.indices, self.world.rank, self.world.size), "train"
            )
            loss, _ = self.model(inputs, targets)
            (loss * self.world.size / (len(batch.indices) * self.workload.units_per_sample)).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.position = batch.end


def main(output: Path, tiny: bool) -> None:
    """Turns of both in a random order for each pair, and of the bare loop against itself."""
    config, steps = (replace(CONFIG, batch_size=2), 1) if tiny else (CONFIG, STEPS)
    with joined(config) as own:
        world = own.world
        workload = load("corpus")
        training = Trainer(config, world, own.device, FP32, workload, own.stop, own.watch)
        reporter = Reporter(training, Metrics([]), Goodput(), None)
        loops = {
            "ours": lambda steps: training.run(reporter, steps),
            "bare": Bare(config, world, workload).run,
            "again": Bare(config, world, workload).run,
        }

        def timed(name: str) -> float:
            dist.barrier()
            began = time.perf_counter()
            loops[name](steps)
            dist.barrier()
            return time.perf_counter() - began

        for loop in loops.values():
            loop(WARM_UP)
        seconds = in_turns({name: partial(timed, name) for name in loops}, PAIRS)
        if world.rank == 0:
            output.write_text(json.dumps({"steps": steps, "seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--tiny" in sys.argv)
    sys.stdout.flush()
    os._exit(0)  # see trainer.process.run_and_exit
