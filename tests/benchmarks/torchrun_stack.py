"""A stack on a local cloud of its own with the operator of TorchrunJobs. Entry point: `torchrun_stack()`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from local.guard import cloud_environment
from tests.faults.place import SPACE, Place, until
from tests.faults.run import JOBS, PODS
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine
from trainyard.operator import names as n

STACK = "local"
PYTORCH_JOBS = f"/apis/kubeflow.org/v1/namespaces/{SPACE}/pytorchjobs"
PARTS = ("crd", "config/deployment.yaml", "config/rbac/role.yaml", "config/admission.yaml")
# No node has this label, and no node pool either: such pods stay pending and cost nothing.
NOWHERE = {"trainyard.example.com/benchmark": "nowhere"}


class Bench:
    """The stack, and commands as a person types them there."""

    def __init__(self, made: World, place: Path) -> None:
        self.world = made
        engine = Engine(made.home.root, made.stack, cloud_environment(made.home))
        self.outputs = engine.outputs()
        self.place = Place(made.home, self.outputs)
        self.environment = {
            **os.environ, **engine.environment, "KUBECONFIG": str(made.home.kubeconfig), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        # An installed plugin has its byte code.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        words = [
            "trainyard.operator.manifests",
            "--into",
            str(place),
            "--image",
            self.outputs["launcherImage"],
        ]
        self.run(sys.executable, "-m", *words)
        for each in PARTS:
            self.run("kubectl", "apply", "-f", str(place / each))
        rolled = ("rollout", "status", f"deployment/{n.CONTROLLER}", "-n", n.CONTROLLER_NAMESPACE)
        self.run("kubectl", *rolled, "--timeout=120s")

    def run(self, *words: str, cwd: Path = ROOT) -> str:
        """Return what a command prints. Raises AssertionError if it fails."""
        answer = subprocess.run(
            words, cwd=cwd, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, f"{' '.join(words)}:\n{answer.stdout}"
        return answer.stdout

    def queue(self, name: str, storage: dict[str, Any], *, nowhere: bool) -> None:
        """Create a queue of workers without GPUs, like that of the examples; with `nowhere` no node runs them."""
        examples = yaml.safe_load_all((ROOT / "examples" / "torchrun" / "queues.yaml").read_text())
        made: dict[str, Any] = next(each for each in examples if each["metadata"]["name"] == "cpu")
        made["metadata"]["name"] = name
        made["spec"] |= {"image": self.outputs["trainerImage"], "storage": storage}
        if nowhere:
            made["spec"]["scheduling"] = {"nodeSelector": NOWHERE}
        path = f"/apis/{n.API_VERSION}/namespaces/{SPACE}/{n.QUEUE_PLURAL}"
        self.place.api.request("POST", path, body=made)
        until(lambda: _is_ready(self.place.get(f"{path}/{name}")), f"queue {name} is ready")


def _is_ready(queue: Any) -> bool:
    conditions = (queue or {}).get("status", {}).get("conditions", [])
    return any(each["type"] == n.READY and each["status"] == "True" for each in conditions)


def _end_own_run(place: Place) -> None:
    """End the run that `make up` started, and give its nodes back."""
    for path in (JOBS, PYTORCH_JOBS):
        for each in place.items(path):
            place.delete(f"{path}/{each['metadata']['name']}")
    until(lambda: not place.items(PODS), "the pods of the stack's own run are gone")
    place.without_machines()


@contextmanager
def torchrun_stack() -> Iterator[Bench]:
    """Bring the stack up with the operator and without a run; end it afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory,
        world(Path(directory) / "home", STACK) as made,
    ):
        made.up()
        bench = Bench(made, Path(directory) / "install")
        _end_own_run(bench.place)
        yield bench
