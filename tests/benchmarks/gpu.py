"""GPT-2 124M on one GPU: our loop and nanoGPT's way of writing one, in turns, as JSON to the file that is named.

    torchrun --standalone --nproc-per-node 1 -m tests.benchmarks.gpu OUTPUT.json DIRECTORY [--tiny]

Both have the same network, shapes, precision, compiler and optimizer. The other loop draws its batches at random, pins
them and sends them while the step before runs, as github.com/karpathy/nanoGPT's train.py does. `--tiny` tries the
code on a small model and the CPU; its numbers mean nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.benchmarks.joined import joined, plain_adamw
from tests.benchmarks.saves import timed
from trainer.checkpoints import Checkpoints
from trainer.config import Config
from trainer.metrics.goodput import Goodput
from trainer.metrics.hub import Metrics
from trainer.metrics.peaks import peak
from trainer.precision import Precision, prepare
from trainer.reporter import Reporter
from trainer.training import Training
from trainer.workloads import TEST_TOKENS, TRAIN_TOKENS, Workload, load

TURNS, STEPS, WARM_UP = 9, 20, 10
SAVED_STEPS = 100
TOKENS, BATCH = 20_000_000, 32
MATRIX = 8192


class Other:
    """nanoGPT's loop: random batches, autocast, a compiled model, fused AdamW, clipping, no accumulation."""

    def __init__(
        self, network: nn.Module, tokens: Path, config: Config, device: torch.device, precision: Precision
    ):
        self.network = network.to(device)
        self.model: Any = (
            torch.compile(self.network, dynamic=False) if config.compile != "no" else self.network
        )
        self.data = np.memmap(tokens, np.uint16, mode="r")
        self.batch, self.device, self.precision = config.batch_size, device, precision
        self.length = load(str(tokens.parent), config.model).units_per_sample
        self.optimizer = plain_adamw(self.network, device)
        self.next = self.draw()

    def draw(self) -> tuple[Tensor, Tensor]:
        places = torch.randint(len(self.data) - self.length, (self.batch,))
        rows = [torch.from_numpy(self.data[at : at + self.length + 1].astype(np.int64)) for at in places]
        whole = torch.stack(rows)
        parts = (whole[:, :-1].contiguous(), whole[:, 1:].contiguous())
        if self.device.type == "cpu":
            return parts
        inputs, targets = (part.pin_memory().to(self.device, non_blocking=True) for part in parts)
        return inputs, targets

    def run(self, steps: int) -> None:
        for _ in range(steps):
            inputs, targets = self.next
            with self.precision.autocast(self.device):
                loss, _ = self.model(inputs, targets)
            self.next = self.draw()
            (loss / targets.numel()).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def tokens_of(directory: Path, count: int) -> Path:
    """A directory of random tokens: what they mean costs no time."""
    place = directory / "tokens"
    place.mkdir()
    for name, size in ((TRAIN_TOKENS, count), (TEST_TOKENS, count // 100)):
        np.random.default_rng(0).integers(0, 50257, size, dtype=np.uint16).tofile(place / name)
    return place


def matmul_rate(device: torch.device, size: int) -> float:
    """FLOP/s of a product of two square bf16 matrices, the median of nine."""
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = sorted(synchronised(lambda: [one @ other for _ in range(10)], device) for _ in range(9))
    return 10 * 2 * size**3 / seconds[4]


def synchronised(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of work, to the end of what it gave the device to do."""

    def whole() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return timed(whole)


def main(output: Path, directory: Path, tiny: bool) -> None:
    place = tokens_of(directory, TOKENS // 100 if tiny else TOKENS)
    config = Config(
        data=str(place),
        model="gpt-tiny" if tiny else "gpt-124M",
        batch_size=4 if tiny else BATCH,
        device="cpu" if tiny else "cuda",
        compile="no" if tiny else "yes",
        steps=10**6,
        checkpoint_every=10**6,
        owner="benchmark",
    )
    with joined(config) as own:
        device = own.device
        precision = prepare(config.precision, device)
        workload: Workload = load(config.data, config.model)
        training = Training(config, own.world, device, precision, workload, own.stop, own.watch)
        best = peak(torch.cuda.get_device_name(device), precision.name) if device.type == "cuda" else None
        reporter = Reporter(training, None, Metrics([]), Goodput(), best)
        other = Other(workload.model(), place / TRAIN_TOKENS, config, device, precision)
        loops: dict[str, Callable[[int], object]] = {
            "ours": lambda steps: training.run(reporter, steps),
            "other": other.run,
        }
        for loop in loops.values():
            synchronised(lambda: loop(WARM_UP), device)  # noqa: B023 - called at once
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(TURNS):
            for name in sorted(loops, reverse=turn % 2 == 0):
                seconds[name].append(synchronised(lambda: loops[name](STEPS), device))  # noqa: B023
        plain = [synchronised(lambda: training.run(reporter, SAVED_STEPS), device) for _ in range(2)]
        training.config = replace(config, checkpoint_every=SAVED_STEPS)
        checkpoints = Checkpoints(str(directory / "checkpoints"), training, Goodput(), lambda line: None)
        saving = Reporter(training, checkpoints, Metrics([]), Goodput(), best)
        saved = []
        for _ in range(3):
            saved.append(synchronised(lambda: training.run(saving, SAVED_STEPS), device))
        checkpoints.end()
        output.write_text(
            json.dumps(
                {
                    "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                    "tokens_per_step": config.batch_size * workload.units_per_sample,
                    "flops_per_step": config.batch_size * workload.flops_per_sample,
                    "steps": STEPS,
                    "seconds": seconds,
                    "peak": best,
                    "matmul": matmul_rate(device, 256 if tiny else MATRIX),
                    "plain": plain,
                    "saved": saved[1:],  # the first makes the pinned memory that the others use again
                }
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--tiny" in sys.argv)
    sys.stdout.flush()
    os._exit(0)  # see trainer.train.process
