"""The record of a stack's life."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stacks import record
from tests.stacks.record import Times

pytestmark = pytest.mark.unit


def test_a_life_is_kept_with_its_commit_and_the_seconds_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([10.0, 12.25, 20.0, 20.5])
    monkeypatch.setattr(record, "LIVES", tmp_path / "lives")
    monkeypatch.setattr(record, "commit", lambda: "abc")
    monkeypatch.setattr(record.time, "monotonic", lambda: next(now))
    times = Times()
    for command in ("up", "down"):
        with times.of(command):
            pass
    kept = json.loads(times.keep("p5").read_text())
    assert (tmp_path / "lives" / "p5.json").exists()
    assert (kept["stack"], kept["commit"], kept["seconds"]) == ("p5", "abc", {"up": 2.2, "down": 0.5})


def test_a_command_that_failed_has_no_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "commit", lambda: "abc")
    times = Times()
    with pytest.raises(RuntimeError), times.of("up"):
        raise RuntimeError
    assert times.seconds == {}
