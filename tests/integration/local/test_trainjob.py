"""A run as a TrainJob, on the stack of the main job's story, which changes its backend for it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from local.tools import OPTIONAL_TOOLS, ensure
from tests.integration.local.conftest import Stack
from tests.integration.local.test_elastic import process_of
from tests.integration.local.test_main_job import conditions, model
from tests.integration.local.test_restarts import (
    SPACE,
    begin,
    forget,
    manifest,
    poll,
    went_on_from_the_newest_checkpoint,
)
from trainyard.cli.commands import pinned_sources

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


def use_trainjobs(config: dict[str, Any]) -> None:
    """Change the settings as `make up` writes them for a stack file with this backend."""
    config["trainyard:training"]["backend"] = "trainjob"
    config["trainyard:sources"] = pinned_sources({"config": config})


def workers(stack: Stack, run_id: str) -> str:
    """Return the logs of all workers, by the label that PyTorchJobs' workers have, too."""
    selector = f"training.kubeflow.org/job-name=train-{run_id}"
    return stack.logs(
        *(pod["metadata"]["name"] for pod in stack.get("pods", *SPACE, "-l", selector)["items"])
    )


@pytest.fixture
def run_id(stack: Stack) -> Iterator[str]:
    """A run that has saved its first checkpoint as a TrainJob on two nodes."""
    ensure(OPTIONAL_TOOLS, stack.home, quiet=True)
    stack.update(use_trainjobs)
    stack.outputs = stack.engine.outputs()
    run = begin(stack, manifest(stack, minNodes=2))
    try:
        poll(lambda: "checkpoint=saved" in workers(stack, run), "the first checkpoint")
        yield run
    finally:
        forget(stack, run)


def can(stack: Stack, verb: str, resource: str) -> bool:
    account = "--as=system:serviceaccount:training:launcher"
    return stack.kubectl("auth", "can-i", verb, resource, *SPACE, account).output.strip() == "yes"


def test_trainjob_with_a_killed_worker_resumes(stack: Stack, run_id: str) -> None:
    assert stack.kubectl("get", "deployment", "training-operator", "-n", "kubeflow").code != 0
    job = stack.get("trainjob", f"train-{run_id}", *SPACE)
    assert job["spec"]["trainer"]["numNodes"] == 2
    assert can(stack, "create", "trainjobs.trainer.kubeflow.org")
    assert not can(stack, "create", "pytorchjobs.kubeflow.org")
    os.kill(process_of(run_id, 1), signal.SIGKILL)

    def over() -> bool:
        return bool({"Complete", "Failed"} & conditions(stack.get("job", f"launch-{run_id}", *SPACE)))

    poll(over, "the run's end")
    log = stack.kubectl("logs", *SPACE, f"job/launch-{run_id}").output
    restarts = [line for line in log.splitlines() if "state=restarting" in line]
    assert restarts, log
    assert all("restart 1 of 2: " in line for line in restarts), restarts
    assert "state=succeeded" in log, log
    again = stack.get("trainjob", f"train-{run_id}", *SPACE)
    assert again["metadata"]["uid"] != job["metadata"]["uid"]
    assert "Complete" in conditions(again)
    pods = stack.get("pods", *SPACE, "-l", f"trainyard.dev/run={run_id},trainyard.dev/role=worker")["items"]
    assert len(pods) == 2
    output = workers(stack, run_id)
    assert re.search(r"^rank=1 world_size=2 nodes=2 .* restart=1$", output, re.M), output
    (first,) = (pod["metadata"]["name"] for pod in pods if "-node-0-0-" in pod["metadata"]["name"])
    went_on_from_the_newest_checkpoint(stack, run_id, stack.logs(first))
    assert model(stack, run_id), "no model was saved"
