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
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.benchmarks.turns import in_turns
from trainer.checkpoint.save import Saver
from trainer.checkpoint.state import gather
from trainer.config import Config
from trainer.distributed import new_group
from trainer.hang import timeout
from trainer.stores import Directory
from trainer.world import World

REPEATS = 7
# 12 matrices of 1880 x 1880: 42.4 million weights, and two more numbers for each in AdamW.
LAYERS, WIDTH = 12, 1880
# Steps of a turn without a save.
IDLE_STEPS = 3
KINDS = ("thread", "process")


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


class Asynchronous:
    """Our save, by a thread or by a process: one at a time, while the model goes on learning."""

    def __init__(self, work: Work, place: Path, kind: str) -> None:
        self._work = work
        store_address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        size = dist.get_world_size()
        trainer: Any = SimpleNamespace(
            config=Config(checkpoint_keep=1),
            world=World(dist.get_rank(), size, 0, size, 1),
            workload=SimpleNamespace(digest="0" * 64),
            device=torch.device("cpu"),
        )
        self._saver = Saver(
            Directory(place),
            new_group(timeout(600)),
            trainer,
            store_address=store_address if kind == "process" else None,
            log_line=lambda line: None,
        )
        self._saver.allocate(gather(work.model, work.optimizer))
        self._saver.finish()  # a process that still starts is busy, and the first save would be skipped
        self.found: dict[str, list[float]] = {"blocked": [], "durable": [], "step": []}
        self.save()  # it makes what the others use again
        for values in self.found.values():
            values.clear()

    def save(self) -> float:
        """Seconds that one save blocked; notes those, the seconds until it was durable, and of a step meanwhile."""
        counts, work = self._saver.counts, self._work
        number = counts.saved + 1
        began = time.perf_counter()
        self._saver.save(gather(work.model, work.optimizer), number, 0)
        blocked = time.perf_counter() - began
        steps: list[float] = []
        waits: list[float] = []
        while counts.saved < number:
            steps.append(work.step(lambda: waits.append(self._saver.staged())))
            if counts.skipped or counts.failed:
                raise SystemExit(f"a save was skipped or failed: {counts}")
        blocked += sum(waits)
        self._saver.finish()  # the checkpoint before is deleted last, and the next save would be skipped meanwhile
        for name, value in (
            ("blocked", blocked),
            ("durable", counts.last_writing_seconds),
            ("step", sum(steps) / len(steps)),
        ):
            self.found[name].append(value)
        return blocked

    def close(self) -> None:
        self._saver.finish()
        self._saver.close()


def measure(directory: Path, rounds: int = REPEATS) -> dict[str, Any]:
    """All ways in turns: a copy in memory, torch.save with fsync, our save by a thread and by a process, and none."""
    work = Work()
    work.step()
    state = gather(work.model, work.optimizer)
    copy = {name: tensor.clone() for name, tensor in state.items()}
    ours = {kind: Asynchronous(work, directory / kind, kind) for kind in KINDS}
    seconds = in_turns(
        {
            "memcpy": lambda: timed(lambda: [copy[name].copy_(state[name]) for name in state]),
            "torch_save": lambda: timed(lambda: save_and_sync(state, directory / "plain.pt")),
            "idle_step": lambda: median(work.step() for _ in range(IDLE_STEPS)),
            **{kind: each.save for kind, each in ours.items()},
        },
        rounds,
    )
    found = {
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
        **{name: seconds[name] for name in ("memcpy", "torch_save", "idle_step")},
        **{kind: each.found for kind, each in ours.items()},
    }
    for each in ours.values():
        each.close()
    return found


def main(output: Path, directory: Path) -> None:
    dist.init_process_group("gloo")
    output.write_text(json.dumps(measure(directory)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # see trainer.process.run_and_exit
