"""`make bench-local`: which figures a row measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local.home import Home
from tests.benchmarks import local_cloud
from tests.benchmarks.figures import Figure
from tests.shipped import shipped


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands that the benchmark ran; each takes a second."""
    run: list[str] = []

    def timed(command: list[str], _environment: dict[str, str], _directory: Any = None) -> tuple[float, str]:
        run.append(" ".join(command[1:]).removeprefix("-m "))
        return 1.0, ""

    monkeypatch.setattr(local_cloud, "timed", timed)
    monkeypatch.setenv("TRAINYARD_HOME", "replaced by the benchmark")
    return run


def test_previews_are_of_all_shipped_stacks(commands: list[str]) -> None:
    rows = list(local_cloud.measure(["previews"]))
    assert [row.name for row in rows] == [f"make preview STACK={stack}" for stack in shipped()]
    assert commands[2:] == [f"trainyard.cli preview --stack {stack}" for stack in shipped()]


def test_up_row_measures_both_starts_and_the_end(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    home = Home()
    home.logs.mkdir(parents=True)
    (home.logs / "supervisor.log").write_text("ready after 3.1 s\nready after 4.5 s\n")
    monkeypatch.setattr(local_cloud, "idle_figures", lambda: iter(()))
    rows = list(local_cloud.up_figures(home, {}))
    assert [word.split()[1] for word in commands] == ["up", "up", "down"]
    assert [row.name for row in rows if isinstance(row, Figure) and row.missed] == ["control plane ready"]
    assert [row.value for row in rows] == [1.0, 4.5, 1.0, 1.0]
