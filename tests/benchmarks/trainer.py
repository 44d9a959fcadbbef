"""`make bench-trainer`: the trainer's figures beside the usual ways; a missed one is named and the exit code is 1.

    python -m tests.benchmarks.trainer [--raw FILE]

Everything runs on this machine. docs/benchmarks/trainer.md is made by hand from what this prints, and the file of raw
numbers is committed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.figures import Figure, Note, verdict
from tests.benchmarks.pairs import paired_ratio

ROOT = Path(__file__).parents[2]
REPEATS = 7
HEAVY = ("--data", "corpus", "--device", "cpu", "--batch-size", "2", "--steps", "100000", "--log-every", "1")


def torchrun(processes: int, module: str, *words: str) -> subprocess.Popen[str]:
    """A training's processes, which speak into a pipe."""
    started = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return subprocess.Popen(
        [sys.executable, *started, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def measured(processes: int, module: str, place: Path, *words: str) -> Any:
    """What a module of this folder writes down."""
    output = place / f"{module.rpartition('.')[2]}-{processes}.json"
    process = torchrun(processes, module, str(output), *words)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{module} ended with {process.returncode}:\n{said}")
    return json.loads(output.read_text())


def steps(place: Path, raw: dict[str, Any]) -> Iterator[Figure | Note]:
    """Our loop beside a bare one, in turns in the same processes."""
    each: dict[int, dict[str, float]] = {}
    for processes in (2, 1):
        found = raw[f"steps of {processes}"] = measured(processes, "tests.benchmarks.steps", place)
        seconds = found["seconds"]
        each[processes] = {name: median(values) / found["steps"] for name, values in seconds.items()}
        ours, itself = (paired_ratio(seconds[name], seconds["bare"]) for name in ("ours", "again"))
        told = f"{processes} process{'es' if processes > 1 else ''}"
        if processes == 2:
            yield Figure(
                name="a step: ours over a bare loop, lower bound",
                value=ours.low,
                limit=1.02,
                unit="",
                digits=3,
            )
            yield Figure(
                name="a step: ours over a bare loop, median", value=ours.median, limit=1.05, unit="", digits=3
            )
            least = min(seconds["bare"]) / found["steps"]
            yield Figure(
                name="a step is long enough (0.1 s over it)", value=0.1 / least, limit=1.0, unit="", digits=2
            )
        yield Note(name=f"ours over a bare loop, {told}", told=f"{ours} in {len(seconds['ours'])} pairs")
        yield Note(name=f"a bare loop over itself, {told}", told=str(itself))
        yield Note(name=f"a bare step, {told}", told=f"{each[processes]['bare']:.3f} s")
    for name in ("ours", "bare"):
        yield Note(
            name=f"from 1 to 2 processes, {name}", told=f"{each[1][name] / each[2][name]:.2f} times as fast"
        )


def saves(place: Path, raw: dict[str, Any]) -> Iterator[Figure | Note]:
    """What a checkpoint of 0.5 GB costs."""
    found = raw["saves"] = measured(1, "tests.benchmarks.saves", place, str(place))
    copied, plain, idle = (median(found[name]) for name in ("memcpy", "torch_save", "idle_step"))
    blocked = median(found["thread"]["blocked"])
    yield Figure(
        name="0.5 GB: stall over torch.save and fsync", value=blocked / plain, limit=0.5, unit="", digits=3
    )
    yield Figure(
        name="0.5 GB: stall over a copy in memory", value=blocked / copied, limit=10, unit="", digits=2
    )
    yield Note(
        name="a state",
        told=f"{found['bytes'] / 1e9:.2f} GB; copied in {copied:.3f} s, saved in {plain:.2f} s",
    )
    for kind in ("thread", "process"):
        ours = {name: median(values) for name, values in found[kind].items()}
        yield Note(
            name=f"asynchronous, by a {kind}",
            told=f"stall {ours['blocked']:.3f} s, durable in {ours['durable']:.2f} s, a step meanwhile "
            f"{ours['step'] / idle:.2f} times an idle one of {idle:.2f} s",
        )


def first_step(process: subprocess.Popen[str]) -> None:
    """Wait for the line of a first step. Raises SystemExit when the training ends before."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("step="):
            return
    raise SystemExit(f"a training ended before its first step:\n{''.join(said)}")


def ends(place: Path, raw: dict[str, Any]) -> Iterator[Figure | Note]:
    """From SIGTERM to the end, and from a start to the first step, cold and from a checkpoint."""
    cold, resumed, stopped = [], [], []
    for number in range(REPEATS):
        words = (*HEAVY, "--checkpoint-uri", str(place / f"heavy-{number}"))
        for starts in (cold, resumed):
            began = time.monotonic()
            process = torchrun(2, "tests.benchmarks.heavy", *words)
            first_step(process)
            starts.append(time.monotonic() - began)
            told = time.monotonic()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate()
            stopped.append(time.monotonic() - told)
            if "checkpoint=none" in said or "result=stopped" not in said:
                raise SystemExit(f"a stopped training saved nothing:\n{said}")
    raw["ends"] = {"cold": cold, "resumed": resumed, "stopped": stopped}
    yield Figure(name="SIGTERM to the end, 0.5 GB of state, longest", value=max(stopped), limit=10, unit="s")
    yield Figure(
        name="resumed to its first step, over a cold start",
        value=median(resumed) / median(cold),
        limit=1.5,
        unit="",
        digits=2,
    )
    yield Note(
        name="a cold start to its first step", told=f"{median(cold):.1f} s; resumed {median(resumed):.1f} s"
    )


def gpu(place: Path, raw: dict[str, Any]) -> Iterator[Figure | Note]:
    """GPT-2 124M beside nanoGPT's way, where there is an NVIDIA GPU; where there is none it says so."""
    import torch

    if not torch.cuda.is_available():
        yield Note(name="GPU", told="none at hand: not measured")
        return
    found = raw["gpu"] = measured(1, "tests.benchmarks.gpu", place, str(place))
    rates = {
        name: median(found["tokens_per_step"] * found["steps"] / each for each in seconds)
        for name, seconds in found["seconds"].items()
    }
    yield Figure(
        name="GPT-2 124M: tokens/s of nanoGPT's way over ours",
        value=rates["other"] / rates["ours"],
        limit=1 / 0.98,
        unit="",
        digits=3,
    )
    flops = found["flops_per_step"] / found["tokens_per_step"] * rates["ours"]
    share = f"MFU {flops / found['peak']:.3f} of {found['peak']:.3g} FLOP/s; " if found["peak"] else ""
    yield Note(
        name=f"GPT-2 124M on one {found['device']}",
        told=f"{rates['ours']:.0f} tokens/s; {share}{flops / found['matmul']:.3f} of the measured bf16 product's "
        f"{found['matmul']:.3g} FLOP/s",
    )
    yield Figure(
        name="100 steps with one save, over 100 without",
        value=median(found["saved"]) / median(found["plain"]),
        limit=1.02,
        unit="",
        digits=3,
    )


def main() -> int:
    """Measure, print, and name what was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, metavar="FILE", help="write all measured numbers there, as JSON")
    raw_file = parser.parse_args().raw
    rows: list[Figure | Note] = []
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for part in (steps(place, raw), saves(place, raw), ends(place, raw), gpu(place, raw)):
            for row in part:
                print(row, flush=True)
                rows.append(row)
    if raw_file is not None:
        raw_file.write_text(json.dumps(raw, indent=1) + "\n")
    judged = [row for row in rows if isinstance(row, Figure)]
    print("\nall figures:\n" + "\n".join(map(str, judged)))
    return verdict(judged)


if __name__ == "__main__":
    raise SystemExit(main())
