"""Records of made-up runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainer.metrics.record import Alarm, Checkpoint, End, Evaluation, Record, Start, Step, Stop

BEGAN = 1_800_000_000.0
COMMON: dict[str, Any] = {"time": BEGAN, "run": "r1", "restart": 0, "step": 20, "position": 1280}

START = Start(
    **{**COMMON, "step": 0, "position": 0},
    workload="gpt-124M",
    unit="tokens",
    units_per_sample=1024,
    parameters=124_000_000,
    flops_per_sample=8.5e11,
    batch_size=64,
    steps=1000,
    world_size=4,
    nodes=2,
    device="NVIDIA H200",
    precision="bf16",
    peak_flops=989e12,
)
STEP = Step(
    **COMMON,
    loss=3.5,
    accuracy=0.25,
    learning_rate=0.001,
    seconds=8.0,
    samples_per_second=160.0,
    units_per_second=163_840.0,
    mfu=0.4,
    data_wait_seconds=2.0,
    checkpoint_stall_seconds=0.5,
    goodput=0.75,
)
EVALUATION = Evaluation(**COMMON, loss=3.75, accuracy=0.125, seconds=1.5)
CHECKPOINT = Checkpoint(
    **COMMON,
    name="step-000000020",
    outcome="saved",
    blocked_seconds=0.5,
    durable_seconds=4.0,
    size_bytes=1_500_000_000,
)
ALARM = Alarm(**COMMON, alarm="checkpoint", message="no good one for 600 s")
STOP = Stop(**COMMON, reason="SIGTERM")
END = End(**COMMON, outcome="stopped", exit_code=24, seconds=100.0, goodput=0.7)
EVERY: tuple[Record, ...] = (START, STEP, EVALUATION, CHECKPOINT, ALARM, STOP, END)


def training(after: int, last: int, restart: int = 0, run: str = "r1", every: int = 10) -> list[Record]:
    """A start at step `after`, then records of steps up to `last`."""
    common: dict[str, Any] = {"run": run, "restart": restart}
    steps = range(after + every, last + 1, every)
    return [
        replace(START, **common, step=after, position=after * 64),
        *(replace(STEP, **common, step=step, position=step * 64, loss=100.0 / step) for step in steps),
    ]
