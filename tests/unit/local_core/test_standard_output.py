"""A command line whose standard output is full or closed ends with one line, or none for a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.standard_output import CLOSED_PIPE

ROOT = Path(__file__).parents[3]
FULL = "error: standard output: No space left on device\n"


def started(home: Path, *words: str, output: int) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TRAINYARD_HOME": str(home)}
    command = [sys.executable, "-P", "-m", *words]
    return subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment, timeout=60
    )


@pytest.mark.parametrize(
    "words",
    [
        ("trainyard.cli", "--help"),
        ("trainyard.cli", "completion", "bash"),
        ("trainyard.cli", "__complete", "up", "--"),
        ("trainyard.cli", "status"),
        ("trainyard.cli", "verify-clean"),
        ("local", "down"),
        ("local", "logs", "--help"),
        ("local", "status", "--json"),
    ],
    ids=" ".join,
)
def test_full_standard_output_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = started(tmp_path, *words, output=full)
    os.close(full)
    assert (done.returncode, done.stderr) == (1, FULL)


@pytest.mark.parametrize("words", [("trainyard.cli", "completion", "zsh"), ("local", "status")], ids=" ".join)
def test_closed_pipe_has_no_message(words: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = started(tmp_path, *words, output=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")
