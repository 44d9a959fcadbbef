"""Sweeps that keep their results in a folder of the test, at a commit that has a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.sweeps import plan


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plan, "RESULTS", tmp_path)
    monkeypatch.setattr(plan, "commit", lambda: "abc")
    return tmp_path
