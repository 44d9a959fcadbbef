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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.benchmarks.joined import joined, plain_adamw
from tests.benchmarks.saves import timed
from tests.benchmarks.turns import in_turns
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.config import Config
from trainer.metrics.hub import Metrics
from trainer.metrics.throughput import Goodput, peak
from trainer.parallel import Precision, set_precision
from trainer.reporter import Reporter
from trainer.trainer import Trainer
from trainer.workloads import TEST_TOKENS, TRAIN_TOKENS, Workload, load
from trainer.workloads.gpt import PRESETS

LONGEST_SAVE_SECONDS = 600.0


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
    for name, size in ((TRAIN_TOKENS, count), (TEST_TOKENS, count // 10)):
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


@dataclass(frozen=True)
class Scale:
    """How much is measured: turns, steps of a turn of both loops, and steps of a turn with one save or none."""

    model: str
    batch: int
    turns: int
    steps: int
    warm_up: int
    saved_steps: int
    before_save: int
    matrix: int

    @property
    def all_steps(self) -> int:
        """As many as our loop takes at most: of all turns, the warm-ups, and those to the place of the first save."""
        return self.warm_up + self.turns * self.steps + (2 * self.turns + 2) * self.saved_steps + 1


# A save is to have most of its turn, which would otherwise end with the copy just started.
WHOLE = Scale("gpt-124M", 32, turns=9, steps=20, warm_up=10, saved_steps=100, before_save=10, matrix=8192)
TINY = Scale("gpt-tiny", 1, turns=7, steps=2, warm_up=1, saved_steps=6, before_save=2, matrix=256)


class Saved:
    """Turns of our loop with exactly one save in each, and turns without."""

    def __init__(self, training: Trainer, place: str, scale: Scale, reporter: Reporter) -> None:
        training.config = replace(training.config, checkpoint_every=scale.saved_steps)
        self._training, self._scale, self._reporter = training, scale, reporter
        self._checkpointer = Checkpointer(place, training, Goodput(), lambda line: None)
        self.durable: list[float] = []
        # The process that writes is started after a first step, and would have the first save skipped meanwhile.
        training.checkpointer = self._checkpointer
        training.run(reporter, 1)
        self._checkpointer._saver.finish(LONGEST_SAVE_SECONDS)
        # From here on a turn of saving begins so many steps before one that is saved.
        training.checkpointer = None
        training.run(reporter, (-training.step - scale.before_save) % scale.saved_steps)
        self.with_save()  # it makes the pinned memory that the others use again
        self.durable.clear()

    def without_save(self) -> float:
        """Seconds of a turn in which nothing is saved."""
        return self._timed(None)

    def with_save(self) -> float:
        """Seconds of a turn with a save; what still has to be written then is waited for beside the clock."""
        counts = self._checkpointer.counts
        before, skipped = counts.saved, counts.skipped
        seconds = self._timed(self._checkpointer)
        well = self._checkpointer._saver.finish(LONGEST_SAVE_SECONDS)
        if not well or counts.saved != before + 1 or counts.skipped != skipped or counts.failed:
            raise SystemExit(f"a turn with one save had {counts.saved - before}: {counts}")
        self.durable.append(counts.last_writing_seconds)
        return seconds

    def close(self) -> None:
        self._checkpointer.close()

    def _timed(self, checkpointer: Checkpointer | None) -> float:
        self._training.checkpointer = checkpointer
        return synchronised(
            lambda: self._training.run(self._reporter, self._scale.saved_steps), self._training.device
        )


def measure(directory: Path, scale: Scale, device: str) -> dict[str, Any]:
    """Both loops in turns, then turns with one save and without, in turns too."""
    length = PRESETS[scale.model].sequence
    place = tokens_of(directory, scale.batch * (length + 1) * (scale.all_steps + 1))
    config = Config(
        data=str(place),
        model=scale.model,
        batch_size=scale.batch,
        device=device,
        compile="yes" if device == "cuda" else "no",
        steps=10**6,
        evaluate_every=10**6,
        checkpoint_every=10**6,
        owner="benchmark",
    )
    with joined(config) as own:
        precision = set_precision(config.precision, own.device)
        workload: Workload = load(config.data, config.model)
        training = Trainer(config, own.world, own.device, precision, workload, own.stop, own.watch)
        if scale.all_steps >= training.cursor.steps_per_epoch:
            raise SystemExit(
                "an epoch would end in the measurement, with a step of another size to compile for"
            )
        name = torch.cuda.get_device_name(own.device) if device == "cuda" else "cpu"
        best = peak(name, precision.name) if device == "cuda" else None
        reporter = Reporter(training, Metrics([]), Goodput(), best)
        other = Other(workload.model(), place / TRAIN_TOKENS, config, own.device, precision)
        loops: dict[str, Callable[[int], object]] = {
            "ours": lambda steps: training.run(reporter, steps),
            "other": other.run,
        }
        for loop in loops.values():
            synchronised(partial(loop, scale.warm_up), own.device)
        seconds = in_turns(
            {
                name: partial(synchronised, partial(loop, scale.steps), own.device)
                for name, loop in loops.items()
            },
            scale.turns,
        )
        saved = Saved(training, str(directory / "checkpoints"), scale, reporter)
        turns = in_turns({"plain": saved.without_save, "saved": saved.with_save}, scale.turns)
        saved.close()
        if training.step > scale.all_steps:
            raise SystemExit(f"{training.step} steps; the tokens are for {scale.all_steps}")
        return {
            "device": name,
            "tokens_per_step": config.batch_size * workload.units_per_sample,
            "flops_per_step": config.batch_size * workload.flops_per_sample,
            "steps": scale.steps,
            "seconds": seconds,
            "peak": best,
            "matmul": matmul_rate(own.device, scale.matrix),
            "saved_steps": scale.saved_steps,
            **turns,
            "durable": saved.durable,
        }


def main(output: Path, directory: Path, tiny: bool) -> None:
    found = measure(directory, TINY if tiny else WHOLE, "cpu" if tiny else "cuda")
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--tiny" in sys.argv)
    sys.stdout.flush()
    os._exit(0)  # see trainer.process.run_and_exit
