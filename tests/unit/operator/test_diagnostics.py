"""A job reports why workers do not start or end."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life
from trainyard.operator import names as n
from trainyard.operator.diagnostics import PATIENCE_SECONDS, SIDECAR_GRACE_SECONDS

NO_ROOM = (
    "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes"
)
UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}]
}
EVENTS = "the Events have the cause: kubectl describe job vit-0 -n team"


def waiting(reason: str, message: str = "", of: str = "containerStatuses") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    container = {"name": "torchrun", "image": "example.com/train:1", "state": state}
    return {"conditions": [{"type": "PodScheduled", "status": "True"}], of: [container]}


def blocked(*statuses: dict[str, Any]) -> Life:
    """Return a job of two workers whose pods were created now, and have these statuses."""
    life = Life().begin()
    for name, status in zip(life.names("Pod"), statuses, strict=False):
        pod = life.api.objects["Pod", name]
        pod["status"] = {"phase": "Pending", **status}
        pod["metadata"]["creationTimestamp"] = stamp(life.api.now)
    life.reconcile()
    return life


def cause(life: Life) -> str:
    """Return the cause in the message, in which the first pod is FIRST."""
    text = life.message.partition(" workers are ready")[2].removeprefix(", ")
    return text.replace(life.names("Pod")[0], "FIRST")


CONFIG = "CreateContainerConfigError"
NO_IMAGE = "can't get image example.com/train:1: kubectl describe pod says why"


@pytest.mark.parametrize(
    ("status", "reported"),
    [
        ({"conditions": []}, "waits for the kubelet of node n0, which has not reported on it"),
        (waiting("ErrImagePull", "rpc error: not found"), NO_IMAGE),
        (waiting("ImagePullBackOff", 'Back-off pulling image "x"'), NO_IMAGE),
        (waiting(CONFIG, 'secret "token"\nnot found'), f'can\'t start: {CONFIG}: secret "token" not found'),
        (waiting(CONFIG, "no map", "initContainerStatuses"), f"can't start: {CONFIG}: no map"),
        (waiting("CrashLoopBackOff"), "can't start: CrashLoopBackOff"),
    ],
)
def test_worker_that_does_not_start_is_shown_with_the_reason(status: dict[str, Any], reported: str) -> None:
    life = blocked(status)
    assert life.message == "0 of 2 workers are ready"
    assert life.requeue_after is not None
    assert 0 < life.requeue_after <= PATIENCE_SECONDS
    life.wait(life.requeue_after)
    assert cause(life) == f"FIRST {reported}"
    assert life.condition(n.WORKERS_READY) == ("False", "Starting")


def test_worker_of_a_missing_scheduler_is_reported() -> None:
    """Nothing else reports such a pod."""
    life = blocked({"conditions": []})
    first = life.api.objects["Pod", life.names("Pod")[0]]
    first["spec"] |= {"nodeName": "", "schedulerName": "bin-packing"}
    life.wait(PATIENCE_SECONDS)
    assert cause(life) == "FIRST waits for a node: scheduler bin-packing has not reported on it"


def test_several_blocked_workers_show_the_first_and_a_count() -> None:
    life = blocked(UNSCHEDULABLE, waiting("ErrImagePull"))
    life.wait(PATIENCE_SECONDS)
    assert cause(life).startswith("FIRST waits for a node: 0/2 nodes are")
    assert cause(life).endswith(" (1 more worker)")


def test_workers_that_start_or_run_are_not_reported() -> None:
    life = blocked(waiting("ContainerCreating"), waiting("PodInitializing"))
    life.wait(PATIENCE_SECONDS)
    assert life.message == "0 of 2 workers are ready"
    life.run()
    assert life.message == "2 of 2 workers are ready"


def test_repeated_image_pull_writes_no_status() -> None:
    """The kubelet's two reasons alternate. Each change of the status would be a line for a client that follows."""
    life = blocked(waiting("ErrImagePull", "first"))
    life.wait(PATIENCE_SECONDS)
    life.api.objects["Pod", life.names("Pod")[0]]["status"].update(waiting("ImagePullBackOff", "second"))
    assert life.reconcile() == 0


NO_CLASS = 'pods "template-trial" is forbidden: no PriorityClass with name high was found'


def without_pods(of_job: dict[str, Any] | None = None, **condition: Any) -> str:
    """Return what a job without pods reports in a queue whose dry run was rejected, with these changes."""
    life = Life(of_job, {"scheduling.priorityClassName": "high"})
    rejected = {
        "type": n.POD_TEMPLATE_VALID, "status": "False", "reason": n.REASON_REFUSED, "message": NO_CLASS,
        "observedGeneration": 1,
    }  # fmt: skip
    life.api.objects[n.QUEUE_KIND, "research"]["status"] = {"conditions": [{**rejected, **condition}]}
    life.reconcile()
    for name in life.names("Pod"):
        del life.api.objects["Pod", name]
    life.api.settle = lambda: None  # type: ignore[method-assign]
    life.reconcile()
    assert life.message == "0 of 2 workers are ready"
    life.wait(PATIENCE_SECONDS)
    return life.message.removeprefix("0 of 2 workers are ready, ")


def test_workers_without_a_pod_show_the_dry_run_of_the_queue() -> None:
    """For example, admission rejects each pod because its PriorityClass is missing."""
    assert (
        without_pods()
        == f"2 have no pod; the API server rejects pods of TorchrunQueue research: {NO_CLASS}; {EVENTS}"
    )
    lines = without_pods(message=f"{NO_CLASS}\n{'x' * 9000}")
    assert NO_CLASS in lines
    assert "\n" not in lines
    assert len(lines) < 600


LOW = {"overrides": {"scheduling": {"priorityClassName": "low"}}}


@pytest.mark.parametrize(
    ("of_job", "condition"),
    [
        ({}, {"status": "True", "reason": "Valid"}),
        ({}, {"status": "Unknown", "reason": "NotChecked"}),
        ({}, {"reason": n.REASON_INVALID_SPEC}),
        ({}, {"observedGeneration": 0}),
        ({}, {"message": None}),
        (LOW, {}),  # the dry run has no overrides
    ],
)
def test_dry_run_of_another_template_is_not_reported(
    of_job: dict[str, Any], condition: dict[str, Any]
) -> None:
    assert without_pods(of_job, **condition) == f"2 have no pod; {EVENTS}"


RUNS = {"running": {}}


def ended_beside(others: dict[str, Any], workers: int = 1) -> Life:
    """Return a running job whose first workers succeeded, beside containers in these states."""
    life = Life().run()
    for name in life.names("Pod")[:workers]:
        state = {"terminated": {"exitCode": 0, "finishedAt": stamp(life.api.now), "message": ""}}
        beside = [{"name": each, "state": other} for each, other in others.items()]
        life.api.objects["Pod", name]["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [*beside[:1], {"name": "torchrun", "state": state}, *beside[1:]],
        }
    life.reconcile()
    assert life.message == f"{2 - workers} of 2 workers are ready"
    assert life.requeue_after is not None
    assert 0 < life.requeue_after <= SIDECAR_GRACE_SECONDS
    life.wait(SIDECAR_GRACE_SECONDS)
    assert life.reconcile() == 0
    return life


def test_lingering_sidecar_is_shown_with_the_exit_code() -> None:
    life = ended_beside({"istio-proxy": RUNS})
    assert cause(life) == (
        "FIRST does not end: its container torchrun ended with exit code 0, but container istio-proxy still runs. "
        "Move it to initContainers with restartPolicy: Always, so that it ends with the worker"
    )
    assert life.status["phase"] == "Running"
    life.succeed()
    assert life.status["phase"] == "Succeeded"


def test_lingering_sidecars_of_several_workers_are_counted() -> None:
    life = ended_beside({"istio-proxy": RUNS, "gone": {"terminated": {}}, "vault": {"waiting": {}}}, 2)
    assert "but containers istio-proxy and vault still run." in cause(life)
    assert cause(life).endswith("(1 more worker)")


@pytest.mark.parametrize("worker", [RUNS, {"terminated": {"exitCode": 0, "finishedAt": stamp(1_000_000)}}])
def test_sidecar_in_the_state_of_the_worker_is_not_reported(worker: dict[str, Any]) -> None:
    """It runs with the worker, or ends with it: then the pod ends in a moment."""
    life = Life().run()
    states = [{"name": each, "state": worker} for each in ("torchrun", "logs")]
    life.api.objects["Pod", life.names("Pod")[0]]["status"]["containerStatuses"] = states
    life.wait(SIDECAR_GRACE_SECONDS)
    assert life.message == "2 of 2 workers are ready"
