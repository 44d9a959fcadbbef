"""The command line of a benchmark: which rows are measured, and what a missed limit does."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

import pytest

from local.tools import ToolError
from tests.benchmarks.figures import Figure, Note, run

ROWS = {"idle": "at rest", "pods": "beside others", "cycles": "again and again"}


def figure(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, limit=10, unit="s")


@pytest.mark.parametrize(
    ("value", "missed"), [(9.9, False), (10, False), (10.01, True), (float("nan"), True)]
)
def test_figure_is_missed_above_its_limit(value: float, missed: bool) -> None:
    assert figure("up", value).missed is missed
    assert str(figure("up", value)).endswith("MISSED" if missed else "ok")


@pytest.mark.parametrize(("slow", "code", "message"), [(11, 1, "missed: slow one\n"), (10, 0, "")])
def test_missed_figure_is_named_and_fails(
    slow: float,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(_rows: Collection[str]) -> Iterator[Figure | Note]:
        yield figure("good one", 5)
        yield Note(name="beside", text="nothing")
        yield figure("slow one", slow)

    monkeypatch.setattr(sys, "argv", ["benchmark"])
    assert run("Measures.", ROWS, measure) == code
    output = capsys.readouterr()
    assert output.err == message
    assert [line.split()[0] for line in output.out.splitlines()] == ["good", "beside", "slow"]


@pytest.mark.parametrize(
    ("words", "default", "measured"),
    [
        ([], [], ["idle", "pods", "cycles"]),
        ([], ["idle", "pods"], ["idle", "pods"]),
        (["cycles"], ["idle", "pods"], ["cycles"]),
    ],
)
def test_rows_of_the_command_line_are_measured(
    words: list[str], default: list[str], measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measure(rows: Collection[str]) -> Iterator[Figure | Note]:
        asked.extend(rows)
        yield Note(name="done", text="")

    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    assert run("Measures.", ROWS, measure, default) == 0
    assert asked == measured


def test_unknown_row_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", "idle", "idel"])
    with pytest.raises(SystemExit) as caught:
        run("Measures.", ROWS, lambda _rows: iter(()))
    assert caught.value.code == 2
    assert "ROW: unknown value idel. It must be one of idle, pods, cycles." in capsys.readouterr().err


def test_tool_that_cannot_be_built_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_rows: Collection[str]) -> Iterator[Figure | Note]:
        yield figure("good one", 5)
        raise ToolError("go: is not on PATH")

    monkeypatch.setattr(sys, "argv", ["benchmark"])
    assert run("Measures.", ROWS, measure) == 1
    assert capsys.readouterr().err == "error: go: is not on PATH\n"
