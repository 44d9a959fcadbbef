"""The home's `kubectl torchrun`: the checkout's own, from whatever directory it is started in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from local.home import Home
from local.tools.scripts import write_plugin


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "a home")
    write_plugin(made)
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A person's directory, whose files are called like modules of Python's, of the plugin's and the plugin itself."""
    for name in ("argparse", "yaml", "launcher", "queue"):
        place = tmp_path / "project" / f"{name}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text("raise SystemExit('not this one')\n")
    return tmp_path / "project"


def run(home: Home, program: str, *words: str, project: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    return subprocess.run(
        [str(home.bin / program), *words], cwd=project, env=environment, capture_output=True, text=True, timeout=60
    )  # fmt: skip


def test_it_is_the_plugin_whatever_lies_in_the_directory(home: Home, project: Path) -> None:
    words = ("--queue", "dev", "--gpus", "0", "--nodes", "1", "--dry-run", "-o", "yaml")
    made = run(home, "kubectl-torchrun", "submit", *words, "python train.py 'a b'", project=project)
    assert made.returncode == 0, made.stderr
    assert "command: python train.py 'a b'\n" in made.stdout


def test_so_is_its_completion(home: Home, project: Path) -> None:
    assert run(home, "kubectl_complete-torchrun", "sus", project=project).stdout == "suspend\n:4\n"


def test_what_is_right_is_left_alone(home: Home) -> None:
    script = home.bin / "kubectl-torchrun"
    before = script.stat()
    write_plugin(home)
    assert script.stat().st_ino == before.st_ino
    script.write_text("#!/bin/sh\nan earlier version\n")
    write_plugin(home)
    assert "trainyard.kubectl" in script.read_text()
    assert script.stat().st_mode & 0o777 == 0o755
