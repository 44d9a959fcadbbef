"""`make bench-local`: a missed limit is named and ends with exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks import local_cloud
from tests.benchmarks.local_cloud import Figure

pytestmark = pytest.mark.unit


def figure(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, limit=10, unit="s")


@pytest.mark.parametrize(("value", "missed"), [(9.9, False), (10, False), (10.01, True)])
def test_a_figure_is_missed_above_its_limit_and_not_at_it(value: float, missed: bool) -> None:
    assert figure("up", value).missed is missed
    assert str(figure("up", value)).endswith("MISSED" if missed else "ok")


@pytest.mark.parametrize(("slow", "code", "text"), [(11, 1, "missed: slow one\n"), (10, 0, "")])
def test_a_missed_figure_is_named_and_the_exit_code_says_so(
    slow: float,
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def measure(warm: bool, _cycles: int) -> Iterator[Figure]:
        asked.append(warm)
        yield figure("good one", 5)
        yield figure("slow one", slow)

    monkeypatch.setattr(local_cloud, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["local_cloud", "--warm", "--write", str(tmp_path / "figures")])
    assert local_cloud.main() == code
    assert asked == [True]
    output = capsys.readouterr()
    assert output.err == text
    lines = (tmp_path / "figures").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["good", "slow"]
    assert all(line in output.out for line in lines)
