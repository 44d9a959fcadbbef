"""The example of a program of a user's own, as pip installs the components: previewed, deployed and destroyed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from local.guard import cloud_environment
from local.tools import module_directory
from tests.account import things
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine

pytestmark = pytest.mark.local


class Example:
    """A copy of examples/library beside an installed library, on a local cloud of its own."""

    def __init__(self, directory: Path, made: World) -> None:
        self.directory = directory / "program"
        installed = directory / "installed"
        pip = (
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
        )
        subprocess.run([*pip, "--target", str(installed), str(ROOT)], check=True, timeout=120)
        shutil.copytree(ROOT / "examples" / "library", self.directory)
        program = self.directory / "__main__.py"
        # The local cloud has no late log entries.
        changed = program.read_text().replace(
            "vpc=network.vpc_id)", "vpc=network.vpc_id, late_log_seconds=0)"
        )
        assert changed.count("late_log_seconds=0") == 1
        program.write_text(changed)
        (self.directory / ".venv").symlink_to(ROOT / ".venv")
        engine = Engine(made.home.root, "library", cloud_environment(made.home))
        self.environment = {**engine.environment, "PYTHONPATH": str(installed)}
        self.pulumi("stack", "init", "dev")
        charts = module_directory("karpenter") / "charts"
        settings = {
            "aws:region": "us-west-2",
            "administrators": ["arn:aws:iam::123456789012:user/deployer"],
            "publicAccessCidrs": ["127.0.0.1/32"],
            "karpenterCharts": {
                "chart": str(charts / "karpenter"),
                "crd_chart": str(charts / "karpenter-crd"),
                "version": None,
                "replicas": 1,
            },
            "protect": False,
        }
        file = self.directory / "Pulumi.dev.yaml"
        config = {key if ":" in key else f"ml-platform:{key}": value for key, value in settings.items()}
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "config": config}))

    def pulumi(self, *words: str) -> str:
        """What a command prints that must succeed."""
        done = subprocess.run(
            ["pulumi", *words, "--non-interactive"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("library") / "home", "local") as made:
        yield made


def test_example_of_the_library_is_deployed_and_destroyed(made: World, tmp_path: Path) -> None:
    example = Example(tmp_path, made)
    assert "NodePool pools-gpu create" in example.pulumi("preview")
    assert things(made.client) == made.before
    example.pulumi("up", "--yes", "--skip-preview")
    new = things(made.client) - made.before
    assert sum("list_buckets" in each for each in new) == 1
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(example.pulumi("stack", "output", "kubeconfig"))
    pools = subprocess.run(
        ["kubectl", "get", "nodepool", "gpu", "-o", "jsonpath={.spec.limits}"],
        env={**example.environment, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "nvidia.com/gpu" in pools.stdout, pools.stderr
    example.pulumi("destroy", "--yes", "--skip-preview")
    assert things(made.client) == made.before, os.linesep.join(sorted(things(made.client) - made.before))
