"""The virtual environment: made once, and anew where an earlier command was interrupted while making it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from local import bootstrap

pytestmark = pytest.mark.unit


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run for a checkout in a directory of its own, without running it."""
    (tmp_path / "requirements.lock").write_text("a==1\n")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / ".venv" / "stamp")
    commands: list[list[str]] = []

    def run(_step: str, command: list[str]) -> None:
        commands.append(command)
        (tmp_path / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        for name in ("python", "pip"):
            (tmp_path / ".venv" / "bin" / name).touch()

    monkeypatch.setattr(bootstrap, "run", run)
    return commands


def test_an_environment_that_was_interrupted_before_it_had_pip_is_made_anew(steps: list[list[str]]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bootstrap.VENV], check=True)
    (bootstrap.VENV / "half").touch()
    bootstrap.main()
    assert steps[0][1:] == ["-m", "venv", str(bootstrap.VENV)]
    assert not (bootstrap.VENV / "half").exists()
    assert bootstrap.STAMP.exists()


def test_an_environment_is_kept_when_the_lock_changes_and_left_alone_when_it_does_not(
    steps: list[list[str]],
) -> None:
    bootstrap.main()
    assert len(steps) == 3
    bootstrap.main()
    assert len(steps) == 3
    bootstrap.LOCK.write_text("a==2\n")
    bootstrap.main()
    assert [command[1:3] for command in steps[3:]] == [["-m", "pip"], ["pip", "sync"]]
