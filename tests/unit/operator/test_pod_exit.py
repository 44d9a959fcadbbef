"""What is reported of a worker whose init containers fail, and what of it counts as the command's own end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import DIGEST, pod
from trainyard.operator import names as n

pytestmark = pytest.mark.unit
LOG = f"INFO waiting for the workspace: nothing there\nworkspace: {DIGEST} did not come within 1800 s: nothing there\n"


def ended(name: str, code: int, message: str = "") -> dict[str, Any]:
    said = {"message": message} if message else {}
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": "Error", **said}}}


def failed(*before: dict[str, Any], own: dict[str, Any] | None = None, **changes: Any) -> Life:
    """The first worker of a job fails with these containers before its own."""
    life = Life(changes)
    life.reconcile()
    first = life.api.objects["Pod", life.names("Pod")[0]]
    first["spec"]["initContainers"] = [{"name": "sidecar", "restartPolicy": "Always"}]
    waiting = {"name": n.WORKER_CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}
    first["status"] = {
        "phase": "Failed",
        "initContainerStatuses": list(before),
        "containerStatuses": [own or waiting],
    }
    life.api.settle()
    life.reconcile()
    return life


def test_a_workspace_that_did_not_come_is_reported_with_its_last_line() -> None:
    life = failed(ended(n.FETCH_CONTAINER, 1, LOG), restartPolicy="Never")
    assert (life.status["phase"], life.status["reason"]) == ("Failed", n.REASON_WORKER_FAILED)
    message = life.status["message"]
    assert message.startswith("worker vit-0-0-")
    assert message.endswith(
        " on node n0 did not start: its init container workspace ended with exit code 1 "
        f"(workspace: {DIGEST} did not come within 1800 s: nothing there)"
    )
    assert life.status["exitCode"] == 1


def test_one_that_says_nothing_is_reported_with_its_reason() -> None:
    life = failed(ended("mine", 3), restartPolicy="Never")
    assert life.status["message"].endswith("its init container mine ended with exit code 3 (Error)")


def test_an_exit_code_of_an_init_container_is_not_the_commands() -> None:
    """2 is final where the command ends with it: it was refused as wrong."""
    assert failed(ended("mine", 2)).status["restarts"] == 1
    final = failed(ended("sidecar", 2), own=ended(n.WORKER_CONTAINER, 2))
    assert (final.status["phase"], final.status["reason"]) == ("Failed", n.REASON_NOT_RESTARTABLE)


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ("3", 3),
        ("255", 255),
        ("256", 1),
        ("999", 1),
        ("0", 1),
        ("-9", 137),
        ("-64", 192),
        ("-65", 1),
        ("-200", 1),
    ],
)
def test_an_exit_code_that_no_process_has_is_not_believed(reported: str, shown: int) -> None:
    """The words may be the script's own, and the status takes 0 to 255: the job could not come to its end."""
    said = f"Root Cause (first observed failure):\n[0]:\n  exitcode  : {reported} (pid: 7) \n"
    life = failed(own=ended(n.WORKER_CONTAINER, 1, said), restartPolicy="Never")
    assert (life.status["phase"], life.status["exitCode"]) == ("Failed", shown)


def test_a_sidecar_that_is_ended_with_the_pod_failed_nothing() -> None:
    life = failed(ended("sidecar", 143), ended("mine", 1, "no disk"), restartPolicy="Never")
    assert life.status["message"].endswith("its init container mine ended with exit code 1 (no disk)")
    own = failed(ended("sidecar", 143), own=ended(n.WORKER_CONTAINER, 9), restartPolicy="Never")
    assert own.status["message"].endswith(" on node n0 ended with exit code 9 (Error)")


NO_SHELL = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
    'exec: "sh": executable file not found in $PATH: unknown'
)


def unstarted(reason: str, message: str, code: int = 128) -> str:
    """What a job reports a worker whose container could not be started."""
    end = {"exitCode": code, "reason": reason, **({"message": message} if message else {})}
    own = {"name": n.WORKER_CONTAINER, "state": {"terminated": end}}
    life = failed(own=own, restartPolicy="Never")
    assert (life.status["reason"], life.status["exitCode"]) == (n.REASON_WORKER_FAILED, code)
    return str(life.status["message"]).partition(" on node n0 ")[2]


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun", "CreateContainerError"])
def test_a_container_that_could_not_be_started_is_reported_with_the_runtimes_words(reason: str) -> None:
    """128 alone says nothing, and no log has more. https://github.com/containerd/containerd, internal/cri"""
    assert unstarted(reason, f"first\n{NO_SHELL}\n") == f"did not start: {NO_SHELL} ({reason}, exit code 128)"
    assert unstarted(reason, "") == f"ended with exit code 128 ({reason})"


def test_of_long_words_of_the_runtime_the_end_is_reported() -> None:
    """It is where they say what is wrong; before it are the names of who asked whom."""
    reported = unstarted("StartError", f"{'failed: ' * 1000}not a directory")
    assert reported.endswith("failed: not a directory (StartError, exit code 128)")
    assert len(reported) < 400


def test_a_command_that_ends_with_128_was_started() -> None:
    said = "fatal: not a git repository"
    assert unstarted("Error", said) == f"ended with exit code 128 (Error): {said}"


def test_an_init_container_that_could_not_be_started_is_reported_with_the_end_of_the_runtimes_words() -> None:
    end = {"exitCode": 128, "reason": "StartError", "message": f"{'failed: ' * 1000}not a directory"}
    life = failed({"name": "mine", "state": {"terminated": end}}, restartPolicy="Never")
    assert "did not start: its init container mine ended with exit code 128 (" in life.status["message"]
    assert life.status["message"].endswith("failed: not a directory)")


def test_the_kubelet_keeps_the_last_lines_of_what_fetches_the_workspace() -> None:
    tools = pod({"workspace": {"digest": DIGEST, "sizeBytes": 3}})["spec"]["initContainers"]
    assert {each["terminationMessagePolicy"] for each in tools} == {"FallbackToLogsOnError"}
