"""An elastic world under the real operator: a process that is lost is torchrun's business, not the launcher's."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.submit import with_range
from tests.integration.local.conftest import Stack
from tests.integration.local.test_main_job import conditions, model
from tests.integration.local.test_restarts import SPACE, begin, forget, manifest, poll

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


def log(stack: Stack, run_id: str) -> str:
    """What both workers said. Which of them has rank 0 torchrun's agents find out."""
    pods = [f"train-{run_id}-worker-{index}" for index in (0, 1)]
    return stack.logs(*pods)


@pytest.fixture
def run_id(stack: Stack) -> Iterator[str]:
    """An elastic run that has saved its first checkpoint on two machines."""
    run = begin(stack, with_range(manifest(stack, shape="elastic"), 2, 2))
    try:
        poll(lambda: "checkpoint=saved" in log(stack, run), "the first checkpoint")
        yield run
    finally:
        forget(stack, run)


def process_of(run_id: str, rank: int) -> int:
    """The process that trains as this rank. Pods of the local cloud are processes of this machine."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            name = (entry / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if f"TRAINYARD_RUN_ID={run_id}".encode() in environ and name == f"rank {rank}":
            return int(entry.name)
    raise AssertionError(f"no process trains as rank {rank} of {run_id}")


def test_lost_process_is_restarted_by_torchrun_from_checkpoint(stack: Stack, run_id: str) -> None:
    job = stack.get("pytorchjob", f"train-{run_id}", *SPACE)
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    policy = job["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (2, 2)
    os.kill(process_of(run_id, 1), signal.SIGKILL)

    def over() -> bool:
        return bool({"Complete", "Failed"} & conditions(stack.get("job", f"launch-{run_id}", *SPACE)))

    poll(over, "the run's end")
    said = stack.kubectl("logs", *SPACE, f"job/launch-{run_id}").output
    trained = log(stack, run_id)
    assert "Complete" in conditions(stack.get("job", f"launch-{run_id}", *SPACE)), said + trained
    assert "state=restarting" not in said, "the launcher restarted what torchrun's agents can restart"
    assert stack.get("pytorchjob", f"train-{run_id}", *SPACE)["metadata"]["uid"] == job["metadata"]["uid"]
    worlds = re.findall(r"^rank=(\d) world_size=(\d) ", trained, re.M)
    assert sorted(worlds) == [("0", "2"), ("0", "2"), ("1", "2"), ("1", "2")], trained
    loaded = re.findall(r"^checkpoint=loaded step=(\d+) ", trained, re.M)
    assert len(loaded) == 1, trained
    ended = re.search(r"^result=succeeded .* steps=(\d+) ", trained, re.M)
    assert ended, trained
    assert 20 <= int(loaded[0]) < int(ended[1])
    assert model(stack, run_id), "no model was saved"
