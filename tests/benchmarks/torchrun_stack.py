"""A stack of its own on the local cloud with the controller of torchrun jobs, for figures of the whole."""

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
from tests.faults.run import JOBS
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine
from trainyard.operator import names as n

STACK = "local"
PARTS = ("crd", "config/deployment.yaml", "config/rbac/role.yaml", "config/admission.yaml")
# Its own run trains for a minute, and a minute later its machines go.
IDLE_SECONDS = 300.0
# No machine is like this, and none is bought: what waits for it is there and costs nothing.
NOWHERE = {"trainyard.example.com/benchmark": "nowhere"}


class Bench:
    """The stack, and what a person types there."""

    def __init__(self, made: World, place: Path) -> None:
        self.world = made
        engine = Engine(made.home.root, made.stack, cloud_environment(made.home))
        self.outputs = engine.outputs()
        self.place = Place(made.home, self.outputs)
        self._environment = {
            **os.environ, **engine.environment, "KUBECONFIG": str(made.home.kubeconfig), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        # A plugin that is installed has its byte code.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
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
        """What a command says. Raises AssertionError when it fails."""
        answer = subprocess.run(
            words, cwd=cwd, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, f"{' '.join(words)}:\n{answer.stdout}"
        return answer.stdout

    def queue(self, name: str, storage: dict[str, Any], *, nowhere: bool) -> None:
        """A queue of workers without GPUs, as the examples' one; with `nowhere` no machine takes them."""
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
    told = (queue or {}).get("status", {}).get("conditions", [])
    return any(each["type"] == n.READY and each["status"] == "True" for each in told)


def _is_idle(place: Place) -> bool:
    return all(job["status"].get("succeeded") for job in place.items(JOBS)) and not place.claims()


@contextmanager
def torchrun_stack() -> Iterator[Bench]:
    """It is ended afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory,
        world(Path(directory) / "home", STACK) as made,
    ):
        made.up()
        bench = Bench(made, Path(directory) / "install")
        until(
            lambda: _is_idle(bench.place),
            "the stack's own run has ended and its machines are gone",
            IDLE_SECONDS,
        )
        yield bench
