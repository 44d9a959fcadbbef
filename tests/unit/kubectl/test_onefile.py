"""The plugin as one file, and as a package of pip."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from trainyard.kubectl import output
from trainyard.kubectl.onefile import NEEDED, build

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[3]


def test_one_file_runs_without_other_packages(tmp_path: Path) -> None:
    plugin, completion = build(tmp_path / "dist")
    assert os.access(plugin, os.X_OK)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    alone = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    words = ("submit", "--queue", "q", "--gpus", "0", "--dry-run", "python train.py")
    # Python without the environment's packages, as on another machine.
    python = [sys.executable, "-S", "-I"]

    def run(file: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, str(file), *arguments], cwd=code, env={**alone, **more}, capture_output=True, text=True
        )

    first = run(plugin, *words)
    assert first.returncode == 0, first.stderr
    assert yaml.safe_load(first.stdout)["spec"]["workspace"]["sizeBytes"] > 0
    unpacked = list((tmp_path / ".cache" / "kubectl-torchrun").iterdir())
    assert len(unpacked) == 1
    assert run(plugin, "list").returncode == output.NO_KUBECONFIG
    assert run(completion, "sub").stdout == "submit\n:4\n"
    assert list((tmp_path / ".cache" / "kubectl-torchrun").iterdir()) == unpacked
    # A cache below the directory where it runs would be sent with it.
    assert run(plugin, *words, XDG_CACHE_HOME="cache").returncode == 0
    assert [path.name for path in code.iterdir()] == ["train.py"]
    (home,) = unpacked
    assert not (home / "launcher" / "README.md").exists(), "an edit of it would be another build"
    shutil.rmtree(home)
    command = [*python, str(plugin), *words]
    interrupted = subprocess.Popen(command, cwd=code, env=alone, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not list(home.parent.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.001)
    interrupted.send_signal(signal.SIGINT)
    said = interrupted.communicate(timeout=60)[1]
    assert interrupted.returncode in (130, -signal.SIGINT)
    assert said == "kubectl torchrun: interrupted\n"
    assert list(home.parent.iterdir()) == []
    blocked = tmp_path / "file"
    blocked.touch()
    refused = run(plugin, *words, XDG_CACHE_HOME=str(blocked))
    assert refused.returncode == 1
    assert "can't unpack into" in refused.stderr
    shutil.rmtree(tmp_path / "dist")


def test_pip_installs_what_the_one_file_has_in_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = dict(each.split("==") for each in project["optional-dependencies"]["plugin"])
    assert extra == {name: version(name) for name in NEEDED}
