"""What pip installs: the programs of kubectl's plugin, and the components of Pulumi programs, without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainyard.kubectl import output

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
SECONDS = 120
# Imports all modules of the components and previews the example under mocks.
PREVIEW = """
import importlib, pkgutil, runpy, sys
from types import SimpleNamespace
from unittest.mock import patch
import pulumi, trainyard.components
from pulumi.runtime.proto.callback_pb2 import Callback
from pulumi.runtime import mocks, set_all_config

class Mocks(pulumi.runtime.Mocks):
    def new_resource(self, args):
        outputs = {
            "arn": f"arn:aws:iam::123456789012:role/{args.name}",
            "kubeconfigJson": "{}",
            "oidcProviderArn": "arn:aws:iam::123456789012:oidc-provider/oidc.test",
        }
        print(args.typ, args.name)
        return f"{args.name}-id", {**args.inputs, **outputs}

    def call(self, args):
        return {"version": "v1"}

for each in pkgutil.walk_packages(trainyard.components.__path__, "trainyard.components."):
    importlib.import_module(each.name)
from trainyard.components.torchrun import FILES, JOB_NAMESPACE_FILE, RBAC_FILE
from trainyard.components.torchrun import read_documents
assert read_documents(*FILES, RBAC_FILE, JOB_NAMESPACE_FILE)
assert not {"components", "infra", "config", "crd"} & set(sys.modules)
mocks.set_mocks(Mocks(), project="platform", stack="dev")
set_all_config({
    "aws:region": "us-west-2",
    "platform:administrators": '["arn:aws:iam::123456789012:role/platform"]',
    "platform:publicAccessCidrs": '["203.0.113.0/24"]',
})
# Mocks know no transforms.
callbacks = SimpleNamespace(register_transform=lambda transform: Callback(target="test", token="1"))
with (
    patch("pulumi.runtime.resource._sync_monitor_supports_transforms", return_value=True),
    patch("pulumi.runtime.resource._get_callbacks", return_value=callbacks),
):
    pulumi.runtime.test(lambda: runpy.run_path(sys.argv[1]) and None)()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation, whose sources are gone."""
    source, target = (tmp_path_factory.mktemp("installed") / name for name in ("source", "target"))
    # A copy, as a build leaves its own files beside the sources.
    for package in ("launcher", "trainyard", "components", "config", "crd"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", source)
    # Its dependencies are in this environment; neither they nor the build use the network.
    pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [sys.executable, *pip, "--target", str(target), str(source)],
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shutil.rmtree(source)
    return target


def run_alone(target: Path, directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory.parent),
        "KUBECONFIG": str(directory / "none"),
        "PYTHONPATH": str(target),
    }
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS
    )


def test_installed_plugin_runs_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")

    def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return run_alone(installed, code, str(installed / "bin" / program), *words)

    helped = run("kubectl-torchrun", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: kubectl torchrun ")
    words = ("--queue", "q", "--gpus", "0", "--dry-run", "python train.py")
    made = run("kubectl-torchrun", "submit", *words)
    assert made.returncode == 0, made.stderr
    assert yaml.safe_load(made.stdout)["spec"]["workspace"]["sizeBytes"] > 0
    assert run("kubectl-torchrun", "list").returncode == output.NO_KUBECONFIG
    assert run("kubectl_complete-torchrun", "sub").stdout == "submit\n:4\n"


def test_installed_trainyard_runs_the_checkout_around_it(installed: Path, tmp_path: Path) -> None:
    program = str(installed / "bin" / "trainyard")
    outside = run_alone(installed, tmp_path, program, "--help")
    assert (outside.returncode, outside.stdout) == (1, "")
    assert outside.stderr.startswith(f"error: {tmp_path}: ")
    checkout = tmp_path / "checkout"
    (checkout / "docs").mkdir(parents=True)
    shutil.copytree(ROOT / "trainyard", checkout / "trainyard")
    bare = run_alone(installed, checkout / "docs", program, "--help")
    assert "`make environment`" in bare.stderr
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (checkout / "trainyard" / "cli" / "__main__.py").write_text(
        "import sys; print(sys.path[0], sys.argv[1:])"
    )
    done = run_alone(installed, checkout / "docs", program, "up", "--stack", "dev")
    assert done.stdout == f"{checkout} ['up', '--stack', 'dev']\n"


def test_installed_components_preview_the_example(installed: Path, tmp_path: Path) -> None:
    program = ROOT / "examples" / "library" / "__main__.py"
    done = run_alone(installed, tmp_path, sys.executable, "-c", PREVIEW, str(program))
    assert done.returncode == 0, done.stderr
    registered = done.stdout.splitlines()
    for resource in (
        "eks:index:Cluster platform-dev",
        "kubernetes:karpenter.sh/v1:NodePool pools-gpu",
        "aws:s3/bucket:Bucket datasets",
        "kubernetes:core/v1:ServiceAccount default-dataset-reader",
    ):
        assert resource in registered
    # No package of a common name in a user's environment.
    assert {each.name for each in installed.iterdir() if each.suffix != ".dist-info"} == {
        "bin",
        "launcher",
        "trainyard",
    }
