"""What a checkpoint of 0.5 GB costs a training on the CPU, beside the usual ways: JSON to the file that is named.

torchrun --standalone --nproc-per-node 1 -m tests.benchmarks.saves OUTPUT.json DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainer.checkpoint.saver import Background, Saver
from trainer.checkpoint.state import gather
from trainer.distributed import new_group
from trainer.hang import timeout
from trainer.stores import Directory

REPEATS = 7
# 12 matrices of 1880 x 1880: 42.4 million weights, and two more numbers for each in AdamW.
LAYERS, WIDTH = 12, 1880
IDLE_STEPS = 20


class Work:
    """A model of that size and its steps, of some hundred milliseconds each."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.inputs = torch.randn(64, WIDTH)

    def step(self, before_update: Callable[[], object] = lambda: None) -> float:
        began = time.perf_counter()
        self.model(self.inputs).pow(2).mean().backward()
        before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def save_and_sync(state: dict[str, torch.Tensor], file: Path) -> None:
    with file.open("wb") as target:
        torch.save(state, target)
        target.flush()
        os.fsync(target.fileno())


def asynchronous(work: Work, place: Path, kind: Background) -> dict[str, Any]:
    """Seconds that our save blocked, seconds until it was durable, and seconds of the steps meanwhile."""
    saver = Saver(
        Directory(place),
        new_group(timeout(600)),
        keep=1,
        data_digest="0" * 64,
        device=torch.device("cpu"),
        background=kind,
        meeting=(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        say=lambda line: None,
    )
    saver.warm(gather(work.model, work.optimizer))
    blocked, durable, during = [], [], []
    for number in range(REPEATS + 1):
        began = time.perf_counter()
        saver.save(gather(work.model, work.optimizer), number + 1, 0)
        stalled = time.perf_counter() - began
        steps, waited = [], 0.0
        while saver.counts.saved + saver.counts.failed <= number:
            held: list[float] = []
            steps.append(work.step(lambda: held.append(saver.staged())))  # noqa: B023 - called within this turn
            waited += sum(held)
        if number:  # the first makes what the others use again
            blocked.append(stalled + waited)
            durable.append(saver.counts.last_writing_seconds)
            during.append(sum(steps) / len(steps))
    assert saver.counts.failed == 0, "a save failed"
    saver.finish()
    saver.close()
    return {"blocked": blocked, "durable": durable, "step": during}


def main(output: Path, directory: Path) -> None:
    dist.init_process_group("gloo")
    work = Work()
    work.step()
    state = gather(work.model, work.optimizer)
    copy = {name: tensor.clone() for name, tensor in state.items()}
    found: dict[str, Any] = {
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
        "memcpy": [timed(lambda: [copy[name].copy_(state[name]) for name in state]) for _ in range(REPEATS)],
        "torch_save": [timed(lambda: save_and_sync(state, directory / "plain.pt")) for _ in range(REPEATS)],
        "idle_step": [work.step() for _ in range(IDLE_STEPS)],
    }
    for kind in ("thread", "process"):
        found[kind] = asynchronous(work, directory / kind, kind)
    output.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # see trainer.train.process
