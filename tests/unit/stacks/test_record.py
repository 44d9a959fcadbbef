"""The record of a stack's lifecycle test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stacks import record
from tests.stacks.record import Times


def test_times_keep_stores_commit_and_seconds_per_command(
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
    stored = json.loads(times.keep("p5").read_text())
    assert (tmp_path / "lives" / "p5.json").exists()
    assert (stored["stack"], stored["commit"], stored["seconds"]) == ("p5", "abc", {"up": 2.2, "down": 0.5})


def test_times_failed_command_has_no_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "commit", lambda: "abc")
    times = Times()
    with pytest.raises(RuntimeError), times.of("up"):
        raise RuntimeError
    assert times.seconds == {}
