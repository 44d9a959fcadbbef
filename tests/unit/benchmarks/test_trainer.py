"""The trainer's figures of given numbers: each has its limit, is missed above it, and names itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import trainer
from tests.benchmarks.figures import Figure, Note
from tests.benchmarks.trainer import end_rows, gpu_rows, save_rows, start_rows, step_rows

Rows = Iterator[Figure | Note]


def steps(factor: float, bare: float = 0.6, pairs: int = 32) -> Rows:
    """Turns of four steps: our loop takes `factor` of the bare one."""
    two = {"ours": [bare * factor] * pairs, "bare": [bare] * pairs, "again": [bare] * pairs}
    one = {name: [2 * each for each in values] for name, values in two.items()}
    return step_rows({2: {"steps": 4, "seconds": two}, 1: {"steps": 4, "seconds": one}})


def saves(blocked: float, size: float = 0.51e9) -> Rows:
    """A copy takes 0.1 s, torch.save 3 s."""
    ours = {"blocked": [blocked] * 7, "durable": [2.0] * 7, "step": [0.6] * 7}
    plain = {"memcpy": [0.1] * 7, "torch_save": [3.0] * 7, "idle_step": [0.5] * 7}
    return save_rows({"bytes": size, **plain, "thread": ours, "process": ours})


def starts(image: float, torchrun: float) -> Rows:
    return start_rows({"image": [image] * 7, "torchrun": [torchrun] * 7})


def ends(resumed: float, stopped: float, size: float = 0.51e9) -> Rows:
    """A cold start takes 10 s; one of the stops is longer than all others."""
    return end_rows(
        {
            "cold": [10.0] * 7,
            "resumed": [resumed] * 7,
            "stopped": [3.0] * 13 + [stopped],
            "bytes": [size] * 14,
        }
    )


def gpu(ours: float, saved: float, turns: int = 9) -> Rows:
    """nanoGPT's way takes 2 s for a turn, a hundred steps without a save 10 s."""
    return gpu_rows(
        {
            "device": "H200",
            "tokens_per_step": 1000,
            "flops_per_step": 5e11,
            "steps": 20,
            "seconds": {"ours": [ours] * turns, "other": [2.0] * turns},
            "peak": 1e13,
            "matmul": 8e12,
            "saved_steps": 100,
            "plain": [10.0] * turns,
            "saved": [saved] * turns,
            "durable": [1.5] * turns,
        }
    )


def missed(rows: Rows) -> list[str]:
    return [row.name for row in rows if isinstance(row, Figure) and row.missed]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (lambda: steps(1.019), []),
        (lambda: steps(1.021), ["a step: ours over a bare loop, lower bound"]),
        (
            lambda: steps(1.051),
            ["a step: ours over a bare loop, lower bound", "a step: ours over a bare loop, median"],
        ),
        (lambda: steps(1.0, bare=0.39), ["a step is long enough (0.1 s over it)"]),
        (lambda: saves(0.99), []),
        (lambda: saves(1.01), ["0.5 GB: stall over a copy in memory"]),
        (
            lambda: saves(1.51),
            ["0.5 GB: stall over torch.save and fsync", "0.5 GB: stall over a copy in memory"],
        ),
        (lambda: saves(0.5, size=0.49e9), ["a state is large enough (0.5 GB over it)"]),
        (lambda: starts(7.9, 10.0), []),
        (lambda: starts(8.1, 10.2), ["cold start of 2 processes to the first step"]),
        (lambda: starts(7.9, 9.8), ["cold start of 2 processes, over torchrun -m trainer.train"]),
        (lambda: ends(14.9, 9.9), []),
        (lambda: ends(15.1, 9.9), ["resumed to its first step, over a cold start"]),
        (lambda: ends(14.9, 10.1), ["SIGTERM to the end, 0.5 GB of state, longest"]),
        (lambda: ends(14.9, 9.9, size=0.4e9), ["what is saved then is large enough (0.5 GB over it)"]),
        (lambda: gpu(2 / 0.981, 10.19), []),
        (lambda: gpu(2 / 0.979, 10.19), ["GPT-2 124M: tokens/s of nanoGPT's way over ours"]),
        (lambda: gpu(2 / 0.981, 10.21), ["100 steps with one save, over as many without"]),
        (lambda: gpu_rows(None), []),
    ],
)
def test_a_figure_is_missed_just_above_its_limit(rows: Callable[[], Rows], names: list[str]) -> None:
    assert missed(rows()) == names


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (lambda: steps(1.0, pairs=29), "29 pairs of turns; expected at least 30"),
        (lambda: gpu(1.0, 10.0, turns=6), "a median of 6 values; expected at least 7"),
    ],
)
def test_too_few_measurements_make_no_figure(rows: Callable[[], Rows], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        list(rows())


def notes(rows: Rows) -> dict[str, str]:
    return {row.name: row.text for row in rows if isinstance(row, Note)}


def test_what_has_no_limit_is_printed_beside_the_figures() -> None:
    text = notes(steps(1.01))
    assert text["ours over a bare loop, 2 processes"] == "1.010 (1.010 to 1.010) in 32 pairs"
    assert text["a bare loop over itself, 2 processes"] == "1.000 (1.000 to 1.000)"
    assert text["from 1 to 2 processes, ours"] == text["from 1 to 2 processes, bare"] == "2.00 times as fast"
    assert notes(saves(0.2))["asynchronous, by a thread"] == (
        "stall 0.200 s, durable in 2.00 s, a step meanwhile 1.20 times an idle one of 0.50 s"
    )
    text = notes(gpu(2.0, 10.1))
    assert text["GPT-2 124M on one H200"] == (
        "10000 tokens/s; MFU 0.500 of 1e+13 FLOP/s; 0.625 of the measured bf16 product's 8e+12 FLOP/s"
    )
    assert text["100 steps"] == (
        "10.00 s, with a save 10.10 s, durable in 1.50 s; in turns 1.010 (1.010 to 1.010)"
    )
    assert notes(gpu_rows(None)) == {"GPU": "none at hand: not measured"}


def test_the_command_names_what_was_missed_keeps_every_number_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(_place: Path, raw: dict[str, Any], *, gpu_alone: bool) -> Rows:
        assert not gpu_alone
        raw["ends"] = [1.0, 2.0]
        yield from ends(15.1, 9.9)

    monkeypatch.setattr(trainer, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["trainer", "--raw", str(tmp_path / "raw.json")])
    assert trainer.main() == 1
    assert capsys.readouterr().err == "missed: resumed to its first step, over a cold start\n"
    assert json.loads((tmp_path / "raw.json").read_text()) == {"ends": [1.0, 2.0]}


def test_a_part_that_fails_leaves_the_numbers_of_those_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(_place: Path, raw: dict[str, Any], *, gpu_alone: bool) -> Rows:
        assert not gpu_alone
        raw["ends"] = [1.0, 2.0]
        yield from ends(14.9, 9.9)
        raise SystemExit("a training ended before its first step")

    monkeypatch.setattr(trainer, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["trainer", "--raw", str(tmp_path / "raw.json")])
    with pytest.raises(SystemExit, match="a training ended"):
        trainer.main()
    assert json.loads((tmp_path / "raw.json").read_text()) == {"ends": [1.0, 2.0]}


def test_raw_numbers_go_beside_the_page() -> None:
    assert trainer.RAW.relative_to(trainer.ROOT) == Path("docs/benchmarks/trainer.json")
