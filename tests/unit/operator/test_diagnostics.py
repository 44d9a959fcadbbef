"""What a job reports workers that do not start: nobody finds it by looking for it only."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life
from trainyard.operator import names as n
from trainyard.operator.diagnostics import PATIENCE_SECONDS

pytestmark = pytest.mark.unit
NO_ROOM = (
    "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes"
)
UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}]
}


def waiting(reason: str, message: str = "", of: str = "containerStatuses") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        of: [{"name": "torchrun", "image": "example.com/train:1", "state": state}],
    }


def held(*statuses: dict[str, Any]) -> Life:
    """The pods of a job of two workers have these statuses, as long as nothing else is said to be made."""
    life = Life()
    life.reconcile()
    for name, status in zip(life.names("Pod"), statuses, strict=False):
        pod = life.api.objects["Pod", name]
        pod["status"] = {"phase": "Pending", **status}
        pod["metadata"]["creationTimestamp"] = stamp(life.api.now)
    life.reconcile()
    return life


def message(life: Life) -> str:
    return str(life.status["message"])


@pytest.mark.parametrize(
    ("status", "reported"),
    [
        (
            {"conditions": []},
            "waits for the kubelet of node n0, which has not reported on it",
        ),
        (
            UNSCHEDULABLE,
            "waits for a node: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)",
        ),
        (
            waiting("ErrImagePull", "rpc error: not found"),
            "can't get image example.com/train:1: kubectl describe pod says why",
        ),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "x"'),
            "can't get image example.com/train:1: kubectl describe pod says why",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "token"\nnot found'),
            'can\'t start: CreateContainerConfigError: secret "token" not found',
        ),
        (
            waiting("CreateContainerConfigError", 'configmap "a" not found', "initContainerStatuses"),
            'can\'t start: CreateContainerConfigError: configmap "a" not found',
        ),
        (waiting("CrashLoopBackOff"), "can't start: CrashLoopBackOff"),
    ],
)
def test_a_worker_that_does_not_start_is_named_with_the_reason(status: dict[str, Any], reported: str) -> None:
    life = held(status)
    assert message(life) == "0 of 2 workers are ready"
    assert life.requeue_after is not None
    assert 0 < life.requeue_after <= PATIENCE_SECONDS
    life.api.now += life.requeue_after
    life.reconcile()
    first = life.names("Pod")[0]
    assert message(life) == f"0 of 2 workers are ready, {first} {reported}"
    assert life.condition(n.WORKERS_READY) == ("False", "Starting")


def test_a_worker_that_no_scheduler_has_seen_is_reported() -> None:
    """The queue names one that does not run: nobody else says anything of such a pod."""
    life = held({"conditions": []})
    first = life.names("Pod")[0]
    life.api.objects["Pod", first]["spec"] |= {"nodeName": "", "schedulerName": "bin-packing"}
    life.api.now += PATIENCE_SECONDS
    life.reconcile()
    assert message(life) == (
        f"0 of 2 workers are ready, {first} waits for a node: scheduler bin-packing has not reported on it"
    )


def test_of_several_the_first_is_named_and_the_others_are_counted() -> None:
    life = held(UNSCHEDULABLE, waiting("ErrImagePull"))
    life.api.now += PATIENCE_SECONDS
    life.reconcile()
    first = life.names("Pod")[0]
    assert message(life).startswith(f"0 of 2 workers are ready, {first} waits for a node: 0/2 nodes are")
    assert message(life).endswith(" (1 more is held up)")


def test_nothing_is_reported_of_workers_that_are_on_their_way_or_run() -> None:
    life = held(waiting("ContainerCreating"), waiting("PodInitializing"))
    life.api.now += PATIENCE_SECONDS
    life.reconcile()
    assert message(life) == "0 of 2 workers are ready"
    life.run()
    assert message(life) == "2 of 2 workers are ready"


def test_a_pull_that_is_tried_again_is_no_news() -> None:
    """The kubelet's two words for it take turns for ever; each change of the status is a line for those who follow."""
    life = held(waiting("ErrImagePull", "first"))
    life.api.now += PATIENCE_SECONDS
    life.reconcile()
    life.api.objects["Pod", life.names("Pod")[0]]["status"].update(waiting("ImagePullBackOff", "second"))
    assert life.reconcile() == 0


def test_workers_that_get_no_pod_are_reported_with_where_it_is_said_why() -> None:
    """A quota on pods: the Job controller tries again and again, and tells it to the batch/v1 Job alone."""
    life = Life()
    life.reconcile()
    life.api.run_pods("Running")
    made = life.api.objects["Job", "vit-0"]
    made.setdefault("status", {})["startTime"] = stamp(life.api.now)
    refused = life.names("Pod")[1]
    del life.api.objects["Pod", refused]
    life.api.settle = lambda: None  # type: ignore[method-assign]
    life.reconcile()
    assert life.status["message"] == "1 of 2 workers are ready"
    assert life.requeue_after is not None
    life.api.now += life.requeue_after
    life.reconcile()
    assert (life.status["phase"], life.status["message"]) == (
        "Provisioning",
        "1 of 2 workers are ready, 1 has no pod; why, Events say: kubectl describe job vit-0",
    )


NO_CLASS = 'pods "template-trial" is forbidden: no PriorityClass with name high was found'
EVENTS = "kubectl describe job vit-0"


def without_pods(of_job: dict[str, Any] | None = None, **condition: Any) -> str:
    """What a job tells none of whose workers gets a pod, in a queue of whose template this is reported."""
    life = Life(of_job, {"scheduling.priorityClassName": "high"})
    reported = {
        "type": n.POD_TEMPLATE_VALID,
        "status": "False",
        "reason": n.REASON_REFUSED,
        "message": NO_CLASS,
    }
    its_queue = life.api.objects[n.QUEUE_KIND, "research"]
    its_queue["status"] = {"conditions": [{**reported, "observedGeneration": 1, **condition}]}
    life.reconcile()
    for name in life.names("Pod"):
        del life.api.objects["Pod", name]
    life.api.settle = lambda: None  # type: ignore[method-assign]
    life.reconcile()
    life.api.now += PATIENCE_SECONDS
    life.reconcile()
    return message(life).removeprefix("0 of 2 workers are ready, ")


def test_workers_that_get_no_pod_are_reported_with_what_a_dry_run_of_their_queues_pod_said() -> None:
    """A PriorityClass that is not there, for instance: admission refuses each of their pods."""
    said = f"2 have no pod; TorchrunQueue research rejects its pods: {NO_CLASS}; Events: {EVENTS}"
    assert without_pods() == said
    lines = without_pods(message=f"{NO_CLASS}\n{'x' * 9000}")
    assert NO_CLASS in lines
    assert "\n" not in lines
    assert len(lines) < 600


@pytest.mark.parametrize(
    "condition",
    [
        {"status": "True", "reason": "Valid"},
        {"status": "Unknown", "reason": "NotTried"},
        {"reason": n.REASON_INVALID_SPEC},
        {"observedGeneration": 0},
        {"message": None},
    ],
)
def test_a_dry_run_that_says_nothing_of_the_queue_as_it_is_is_not_reported(condition: dict[str, Any]) -> None:
    assert without_pods(**condition) == f"2 have no pod; why, Events say: {EVENTS}"


def test_a_dry_run_is_not_of_the_pods_of_a_job_that_overrides_its_queue() -> None:
    reported = without_pods({"overrides": {"scheduling": {"priorityClassName": "low"}}})
    assert reported == f"2 have no pod; why, Events say: {EVENTS}"
