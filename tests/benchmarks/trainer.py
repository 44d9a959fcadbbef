"""`make bench-trainer`: the trainer's figures beside the usual ways; a missed one is named and the exit code is 1.

    python -m tests.benchmarks.trainer [--raw FILE] [--gpu]

Everything runs on this machine. docs/benchmarks/trainer.md is made by hand from what this prints, and the raw numbers
are beside it, in docs/benchmarks/trainer.json where no other FILE is named.
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
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, Note, verdict
from tests.benchmarks.pairs import paired_ratio
from tests.benchmarks.turns import LEAST, in_turns, middle

ROOT = Path(__file__).parents[2]
RAW = ROOT / "docs" / "benchmarks" / "trainer.json"
PAIRS = 30  # of turns of both loops, at least
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
SHORT = ("--device", "cpu", "--steps", "1", "--log-every", "1")
HEAVY = ("--data", "corpus", "--device", "cpu", "--batch-size", "2", "--steps", "100000", "--log-every", "1")


def torchrun(processes: int, module: str, *words: str) -> subprocess.Popen[str]:
    """A training's processes, which speak into a pipe."""
    return python(*TORCHRUN, f"--nproc-per-node={processes}", "-m", module, *words)


def python(*words: str, **environ: str) -> subprocess.Popen[str]:
    """Start a Python program whose output goes to a pipe."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environ},
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


def step_rows(found: Mapping[int, Any]) -> Iterator[Figure | Note]:
    """Our loop beside a bare one, by the count of processes: seconds of the turns of both, and the steps of a turn."""
    each: dict[int, dict[str, float]] = {}
    for processes in (2, 1):
        seconds, steps = found[processes]["seconds"], found[processes]["steps"]
        each[processes] = {name: middle(values) / steps for name, values in seconds.items()}
        ours, itself = (paired_ratio(seconds[name], seconds["bare"]) for name in ("ours", "again"))
        count = f"{processes} process{'es' if processes > 1 else ''}"
        if processes == 2:
            if len(seconds["ours"]) < PAIRS:
                raise ValueError(f"{len(seconds['ours'])} pairs of turns; expected at least {PAIRS}")
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
            least = min(seconds["bare"]) / steps
            yield Figure(
                name="a step is long enough (0.1 s over it)", value=0.1 / least, limit=1.0, unit="", digits=2
            )
        yield Note(name=f"ours over a bare loop, {count}", text=f"{ours} in {len(seconds['ours'])} pairs")
        yield Note(name=f"a bare loop over itself, {count}", text=str(itself))
        yield Note(name=f"a bare step, {count}", text=f"{each[processes]['bare']:.3f} s")
    for name in ("ours", "bare"):
        yield Note(
            name=f"from 1 to 2 processes, {name}", text=f"{each[1][name] / each[2][name]:.2f} times as fast"
        )


def save_rows(found: Mapping[str, Any]) -> Iterator[Figure | Note]:
    """What a checkpoint of 0.5 GB costs."""
    copied, plain, idle = (middle(found[name]) for name in ("memcpy", "torch_save", "idle_step"))
    blocked = middle(found["thread"]["blocked"])
    yield Figure(
        name="0.5 GB: stall over torch.save and fsync", value=blocked / plain, limit=0.5, unit="", digits=3
    )
    yield Figure(
        name="0.5 GB: stall over a copy in memory", value=blocked / copied, limit=10, unit="", digits=2
    )
    yield Figure(
        name="a state is large enough (0.5 GB over it)",
        value=0.5e9 / found["bytes"],
        limit=1.0,
        unit="",
        digits=2,
    )
    yield Note(
        name="a state",
        text=f"{found['bytes'] / 1e9:.2f} GB; copied in {copied:.3f} s, saved in {plain:.2f} s",
    )
    for kind in ("thread", "process"):
        ours = {name: middle(values) for name, values in found[kind].items()}
        yield Note(
            name=f"asynchronous, by a {kind}",
            text=f"stall {ours['blocked']:.3f} s, durable in {ours['durable']:.2f} s, a step meanwhile "
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


def seconds_to_first_step(place: Path, *words: str) -> float:
    """Start a training with checkpoints by this command, and wait for its first step and for its end."""
    with tempfile.TemporaryDirectory(dir=place) as checkpoints:
        began = time.monotonic()
        process = python(*words, *SHORT, "--checkpoint-uri", checkpoints, CUDA_VISIBLE_DEVICES="")
        first_step(process)
        found = time.monotonic() - began
        said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a short training ended with {process.returncode}:\n{said}")
    return found


def measure_starts(place: Path) -> dict[str, list[float]]:
    """Return the seconds from a start of two processes to their first step, by the image's command and by torchrun."""
    commands = {
        "image": ("-m", "trainer.entrypoint", "--processes-per-node", "2"),
        "torchrun": (*TORCHRUN, "--nproc-per-node=2", "-m", "trainer.train"),
    }
    ways = {name: partial(seconds_to_first_step, place, *command) for name, command in commands.items()}
    return in_turns(ways, LEAST)


def start_rows(found: Mapping[str, list[float]]) -> Iterator[Figure | Note]:
    """Time from a cold start to the first step."""
    image, torchrun_alone = middle(found["image"]), middle(found["torchrun"])
    yield Figure(name="cold start of 2 processes to the first step", value=image, limit=8.0, unit="s")
    yield Figure(
        name="cold start of 2 processes, over torchrun -m trainer.train",
        value=image / torchrun_alone,
        limit=0.8,
        unit="",
        digits=2,
    )


def ends(place: Path) -> dict[str, list[float]]:
    """Seconds from a start to the first step, cold and resumed in turns, and from SIGTERM to each one's end."""
    found: dict[str, list[float]] = {"cold": [], "resumed": [], "stopped": [], "bytes": []}
    for number in range(LEAST):
        checkpoints = place / f"heavy-{number}"
        words = (*HEAVY, "--checkpoint-uri", str(checkpoints))
        for kind in ("cold", "resumed"):
            began = time.monotonic()
            process = torchrun(2, "tests.benchmarks.heavy", *words)
            first_step(process)
            found[kind].append(time.monotonic() - began)
            signalled = time.monotonic()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate()
            found["stopped"].append(time.monotonic() - signalled)
            if "checkpoint=none" in said or "result=stopped" not in said:
                raise SystemExit(f"a stopped training saved nothing:\n{said}")
            newest = max(checkpoints.glob("run/step-*"))
            found["bytes"].append(sum(file.stat().st_size for file in newest.iterdir()))
    return found


def end_rows(found: Mapping[str, list[float]]) -> Iterator[Figure | Note]:
    """Time to the end of a run and to its first step."""
    cold, resumed = middle(found["cold"]), middle(found["resumed"])
    yield Figure(
        name="SIGTERM to the end, 0.5 GB of state, longest", value=max(found["stopped"]), limit=10, unit="s"
    )
    yield Figure(
        name="what is saved then is large enough (0.5 GB over it)",
        value=0.5e9 / min(found["bytes"]),
        limit=1.0,
        unit="",
        digits=2,
    )
    yield Figure(
        name="resumed to its first step, over a cold start",
        value=resumed / cold,
        limit=1.5,
        unit="",
        digits=2,
    )
    yield Note(
        name="a cold start by torchrun, with 0.5 GB of state, to its first step",
        text=f"{cold:.1f} s; resumed {resumed:.1f} s",
    )


def gpu_rows(found: Mapping[str, Any] | None) -> Iterator[Figure | Note]:
    """GPT-2 124M beside nanoGPT's way, where there is an NVIDIA GPU; None where there is none, which is all it says."""
    if found is None:
        yield Note(name="GPU", text="none at hand: not measured")
        return
    rates = {
        name: middle([found["tokens_per_step"] * found["steps"] / each for each in seconds])
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
        text=f"{rates['ours']:.0f} tokens/s; {share}{flops / found['matmul']:.3f} of the measured bf16 product's "
        f"{found['matmul']:.3g} FLOP/s",
    )
    plain, saved = middle(found["plain"]), middle(found["saved"])
    yield Figure(
        name=f"{found['saved_steps']} steps with one save, over as many without",
        value=saved / plain,
        limit=1.02,
        unit="",
        digits=3,
    )
    yield Note(
        name=f"{found['saved_steps']} steps",
        text=f"{plain:.2f} s, with a save {saved:.2f} s, durable in {middle(found['durable']):.2f} s; in turns "
        f"{paired_ratio(found['saved'], found['plain'])}",
    )


def machine() -> dict[str, Any]:
    """Where and of what the numbers are."""
    import torch

    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision.stdout.strip() or None,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "torch": torch.__version__,
    }


def measure(place: Path, raw: dict[str, Any], *, gpu_alone: bool) -> Iterator[Figure | Note]:
    """Measure one part after another; `raw` gets every number at once."""
    import torch

    raw["machine"] = machine()
    if not gpu_alone:
        yield from cpu_rows(place, raw)
    if torch.cuda.is_available():
        raw["gpu"] = measured(1, "tests.benchmarks.gpu", place, str(place))
    yield from gpu_rows(raw.get("gpu"))
    raw["machine"]["load at the end"] = os.getloadavg()


def cpu_rows(place: Path, raw: dict[str, Any]) -> Iterator[Figure | Note]:
    """Measure what needs no GPU."""
    found = {}
    for processes in (2, 1):
        found[processes] = raw[f"steps of {processes}"] = measured(processes, "tests.benchmarks.steps", place)
    yield from step_rows(found)
    raw["saves"] = measured(1, "tests.benchmarks.saves", place, str(place))
    yield from save_rows(raw["saves"])
    raw["starts"] = measure_starts(place)
    yield from start_rows(raw["starts"])
    raw["ends"] = ends(place)
    yield from end_rows(raw["ends"])


def main() -> int:
    """Measure, print, and name what was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--raw", type=Path, metavar="FILE", default=RAW, help="write all measured numbers there, as JSON"
    )
    parser.add_argument("--gpu", action="store_true", help="measure only what needs a GPU")
    given = parser.parse_args()
    raw_file = given.raw
    rows: list[Figure | Note] = []
    raw: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as directory:
            for row in measure(Path(directory), raw, gpu_alone=given.gpu):
                print(row, flush=True)
                rows.append(row)
    finally:  # what was measured before a part failed is worth keeping
        raw_file.write_text(json.dumps(raw, indent=1) + "\n")
    judged = [row for row in rows if isinstance(row, Figure)]
    print("\nall figures:\n" + "\n".join(map(str, judged)))
    return verdict(judged)


if __name__ == "__main__":
    raise SystemExit(main())
