"""Torchrun jobs on the stack of the main job's story: their controller, as its page installs it, and some queues."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from launcher.core.torchrun import names as n
from local.home import CHECKOUT
from tests.local.conftest import Stack, run
from tests.local.torchrun_person import SPACE, logs_of, reaches

EXAMPLES = CHECKOUT / "examples" / "torchrun"


def image(stack: Stack, name: str) -> str:
    """An image of the stack by its digest."""
    return str(stack.outputs[f"{name}Image"])


@pytest.fixture(scope="module")
def installed(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The controller, as docs/torchrun.md installs it, and the queues of the examples."""
    place = tmp_path_factory.mktemp("install")
    written = run(
        [
            sys.executable, "-m", "launcher.controller.manifests",
            "--into", str(place), "--image", image(stack, "launcher"),
        ]
    )  # fmt: skip
    assert written.code == 0, written.output
    for each in ("crd", "config/deployment.yaml", "config/rbac/role.yaml"):
        applied = stack.kubectl("apply", "-f", str(place / each))
        assert applied.code == 0, applied.output
    rolled = stack.kubectl(
        "rollout", "status", f"deployment/{n.CONTROLLER}", "-n", n.CONTROLLER_NAMESPACE, "--timeout=120s"
    )
    assert rolled.code == 0, rolled.output
    queues = list(yaml.safe_load_all((EXAMPLES / "queues.yaml").read_text()))
    queues.append(requirements_queue(queues))
    for each in queues:
        each["spec"]["image"] = image(stack, "trainer")
        if each["spec"]["nodeResources"]["gpus"]:
            each["spec"]["scheduling"] = {"pool": stack.settings()["config"]["trainyard:pools"][0]["name"]}
    applied = stack.kubectl("apply", *SPACE, "-f", "-", stdin=yaml.safe_dump_all(queues))
    assert applied.code == 0, applied.output
    yield stack
    stack.kubectl("delete", "torchrunjobs,torchrunqueues", "--all", *SPACE, "--timeout=120s")
    for each in ("config/rbac/role.yaml", "config/deployment.yaml", "crd"):
        stack.kubectl("delete", "-f", str(place / each), "--timeout=120s")


def requirements_queue(queues: list[dict[str, Any]]) -> dict[str, Any]:
    """The queue that the requirement's command names: its machines here have four GPUs each."""
    prod = copy.deepcopy(next(each for each in queues if each["metadata"]["name"] == "prod"))
    prod["metadata"]["name"] = "h100-training"
    del prod["spec"]["storage"]["checkpoints"]
    prod["spec"]["storage"]["workspace"] = {"enabled": True, "sizePerGPU": "1Gi"}
    return prod


def workers_of(stack: Stack, name: str) -> list[dict[str, Any]]:
    """The specs of a job's worker pods."""
    label = f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}"
    return [each["spec"] for each in stack.get("pods", *SPACE, "-l", label)["items"]]


def example_trains(stack: Stack, name: str, sizes: set[tuple[int, int]]) -> None:
    """Apply an example as it is, and wait for its success in one of these sizes: nodes and GPUs."""
    applied = stack.kubectl("apply", *SPACE, "-f", str(EXAMPLES / f"{name}.yaml"))
    assert applied.code == 0, applied.output
    ended = reaches(stack, name, n.PHASE_SUCCEEDED)
    assert (ended["nodes"], ended["gpus"]) in sizes
    assert "deprecated" not in logs_of(stack, name)
    assert len(workers_of(stack, name)) == ended["nodes"]
