"""The plugin as pip installs it: its two programs run without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainyard.kubectl import output

pytestmark = [pytest.mark.unit, pytest.mark.long]
ROOT = Path(__file__).parents[3]
SECONDS = 120


def test_pip_installs_both_programs(tmp_path: Path) -> None:
    source, target, code = (tmp_path / name for name in ("source", "target", "code"))
    # A copy, as a build leaves its own files beside the sources.
    for package in ("launcher", "trainyard"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    # Its dependencies are in this environment; neither they nor the build use the network.
    pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    installed = subprocess.run(
        [sys.executable, *pip, "--target", str(target), str(source)],
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    shutil.rmtree(source)
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    alone = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KUBECONFIG": str(tmp_path / "none"),
        "PYTHONPATH": str(target),
    }

    def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        file = str(target / "bin" / program)
        return subprocess.run(
            [file, *words], cwd=code, env=alone, capture_output=True, text=True, timeout=SECONDS
        )

    helped = run("kubectl-torchrun", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: kubectl torchrun ")
    words = ("--queue", "q", "--gpus", "0", "--dry-run", "python train.py")
    made = run("kubectl-torchrun", "submit", *words)
    assert made.returncode == 0, made.stderr
    assert yaml.safe_load(made.stdout)["spec"]["workspace"]["sizeBytes"] > 0
    assert run("kubectl-torchrun", "list").returncode == output.NO_KUBECONFIG
    assert run("kubectl_complete-torchrun", "sub").stdout == "submit\n:4\n"
