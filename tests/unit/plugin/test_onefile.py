"""The plugin as one file runs by itself: without this checkout, without this environment's packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.plugin import exits
from launcher.plugin.onefile import build

pytestmark = [pytest.mark.unit, pytest.mark.long]
ROOT = Path(__file__).parents[3]


def test_one_file_is_all_that_is_needed(tmp_path: Path) -> None:
    plugin, completion = build(tmp_path / "dist")
    assert os.access(plugin, os.X_OK)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    alone = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    words = ("submit", "--queue", "q", "--gpus", "0", "--dry-run", "python train.py")

    def run(file: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        # Python without the environment's packages, as on another machine.
        python = [sys.executable, "-S", "-I"]
        return subprocess.run(
            [*python, str(file), *arguments], cwd=code, env={**alone, **more}, capture_output=True, text=True
        )

    first = run(plugin, *words)
    assert first.returncode == 0, first.stderr
    assert yaml.safe_load(first.stdout)["spec"]["workspace"]["sizeBytes"] > 0
    unpacked = list((tmp_path / ".cache" / "kubectl-torchrun").iterdir())
    assert len(unpacked) == 1
    assert run(plugin, "list").returncode == exits.NO_KUBECONFIG
    assert run(completion, "sub").stdout == "submit\n:4\n"
    assert list((tmp_path / ".cache" / "kubectl-torchrun").iterdir()) == unpacked
    blocked = tmp_path / "file"
    blocked.touch()
    refused = run(plugin, *words, XDG_CACHE_HOME=str(blocked))
    assert refused.returncode == 1
    assert "can't unpack into" in refused.stderr
    shutil.rmtree(tmp_path / "dist")


def test_the_exit_codes_are_those_of_the_contract() -> None:
    stated = yaml.safe_load((ROOT / "contract.yaml").read_text())["exitCodes"]["plugin"]
    codes = {name: value for name, value in vars(exits).items() if isinstance(value, int)}
    assert {re.sub("([A-Z])", r"_\1", name).upper(): value for name, value in stated.items()} == codes
