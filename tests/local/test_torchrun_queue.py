"""A queue that a stack is given while it runs: with it come the controller, and workspaces in the stack's bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.core.torchrun import names as n
from tests.faults.place import until
from tests.local.conftest import Stack
from tests.local.torchrun_person import LISTENS, SPACE, WAIT_SECONDS, job, logs_of, reaches, torchrun

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

QUEUE = "research"


@pytest.fixture(scope="module")
def queued(stack: Stack) -> Iterator[Stack]:
    """As a person gives it: an edit of the stack file, and `pulumi up`."""

    def give(config: dict[str, Any]) -> None:
        config["trainyard:queues"] = [
            {
                "name": QUEUE,
                "pool": config["trainyard:pools"][0]["name"],
                "storage": {"workspace": {"bucket": "models"}},
            }
        ]

    stack.update(give)
    yield stack
    if "trainyard:queues" in stack.settings()["config"]:  # the last test takes it away
        stack.kubectl("delete", "torchrunjobs,torchrunqueues", "--all", "--all-namespaces", "--timeout=120s")
        stack.update(lambda config: config.pop("trainyard:queues"))


def test_a_running_job_has_its_files_from_the_bucket_and_an_edit_too(queued: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTENS)
    (tmp_path / "said.txt").write_text("before")
    submit = ("submit", "--queue", QUEUE, "--gpus", "1", "python train.py")
    made = torchrun(queued, *submit, "--name", "stored", cwd=tmp_path)
    assert made.code == 0, made.output
    workspace = job(queued, "stored")["spec"]["workspace"]
    assert workspace["url"].startswith("s3://")
    until(lambda: "said before" in logs_of(queued, "stored"), "it works", WAIT_SECONDS)
    assert n.sync_pod("stored") not in queued.kubectl("get", "pods", *SPACE, "-o", "name").output
    (tmp_path / "said.txt").write_text("after")
    assert torchrun(queued, "sync", "stored", cwd=tmp_path).code == 0
    until(lambda: "said after" in logs_of(queued, "stored"), "the edit is there", 60)
    (tmp_path / "said.txt").write_text("end")
    assert torchrun(queued, "sync", "stored", cwd=tmp_path).code == 0
    assert reaches(queued, "stored", n.PHASE_SUCCEEDED)["restarts"] == 0
    again = torchrun(queued, *submit, "--name", "again", cwd=tmp_path)
    assert "unchanged" in again.output
    reaches(queued, "again", n.PHASE_SUCCEEDED)


def test_how_far_a_training_is_stands_in_its_status(queued: Stack) -> None:
    """The queue's own image tells it by its metrics, and the controller asks for them."""
    begun = torchrun(
        queued, "submit", "--queue", QUEUE, "--gpus", "1", "--name", "told", "--no-workspace",
        "python -m trainer.train --device cpu --steps 1000000",
    )  # fmt: skip
    assert begun.code == 0, begun.output

    def told() -> dict[str, Any]:
        status = job(queued, "told").get("status") or {}
        assert status.get("phase") not in n.FINAL_PHASES, status
        return dict(status.get("progress") or {})

    until(lambda: told().get("step", 0) > 0, "its first step is told", WAIT_SECONDS)
    first = told()
    assert first["loss"] > 0
    assert (first["throughput"] > 0, first["unit"]) == (True, "samples/s")
    until(lambda: told()["step"] > first["step"], "it goes on", 60)
    assert torchrun(queued, "cancel", "told").code == 0


def test_taken_away_as_the_page_says_nothing_of_it_is_left(queued: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTENS)
    (tmp_path / "said.txt").write_text("before")
    made = torchrun(
        queued, "submit", "--queue", QUEUE, "--gpus", "1", "--name", "open", "python train.py", cwd=tmp_path
    )
    assert made.code == 0, made.output
    reaches(queued, "open", n.PHASE_RUNNING)
    ended = queued.kubectl(
        "delete", "torchrunjobs,torchrunqueues", "--all", "--all-namespaces", "--timeout=120s"
    )
    assert ended.code == 0, ended.output
    queued.update(lambda config: config.pop("trainyard:queues"))
    assert queued.kubectl("get", "torchrunjobs", "-A").code == 1, "the definition is there"
    assert queued.kubectl("get", "namespace", n.CONTROLLER_NAMESPACE).code == 1

    def left() -> str:
        found = queued.kubectl("get", "pods,jobs.batch,services,pvc", *SPACE, "-l", n.LABEL_JOB, "-o", "name")
        return found.output.replace("No resources found in training namespace.", "").strip()

    until(lambda: left() == "", "what was made for jobs is gone", 60)
