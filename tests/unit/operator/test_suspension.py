"""Another controller or a user suspends the Job of a running attempt."""

from __future__ import annotations

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life
from trainyard.operator import names as n
from trainyard.operator.plan import POLL_SECONDS

pytestmark = pytest.mark.unit


def suspend(life: Life, *, by: str = "kueue") -> None:
    """Suspend the Job as another field manager."""
    job = life.api.objects["Job", "vit-0"]
    job["spec"]["suspend"] = True
    job["metadata"]["managedFields"] = [
        {"manager": n.FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:completions": {}}}},
        {"manager": by, "time": stamp(life.api.now), "fieldsV1": {"f:spec": {"f:suspend": {}}}},
        {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]
    life.api.touch(job)


def suspended(life: Life) -> bool:
    return bool(life.api.objects["Job", "vit-0"]["spec"]["suspend"])


def stuck_worker(life: Life) -> dict[str, object]:
    """Suspend the Job of a job with a worker on a node that does not answer. Return this worker."""
    pod = life.api.objects["Pod", life.names("Pod")[0]]
    pod["metadata"]["stuck"] = True
    suspend(life)
    life.api.settle()
    return pod


def test_job_suspended_by_another_is_resumed_after_a_while() -> None:
    life = Life().run()
    life.api.now += 5
    suspend(life)
    life.reconcile()
    assert suspended(life)
    assert life.names("Pod") == []
    assert life.shown("phase", "attempt", "restarts") == ("Running", 0, 0)
    reported = "kueue has suspended Job vit-0; the controller resumes it 30 s later"
    assert life.message == f"0 of 2 workers are ready, {reported}"
    assert life.condition(n.SUSPENDED) == ("True", n.REASON_SUSPENDED_BY_ANOTHER)
    assert life.condition(n.WORKERS_READY)[0] == "False"
    assert life.requeue_after == POLL_SECONDS
    life.api.now += POLL_SECONDS - 1
    assert life.reconcile() == 0
    assert (suspended(life), life.requeue_after) == (True, 1.0)
    life.wait(1)
    assert not suspended(life)
    assert life.condition(n.SUSPENDED) == ("False", "NotAsked")
    life.run()
    assert (life.names("Job"), *life.shown("attempt", "restarts")) == (["vit-0"], 0, 0)


def test_repeated_suspension_is_answered_once_in_a_while() -> None:
    life = Life().run()
    before = len(life.api.written)
    for _ in range(10):
        suspend(life)
        life.reconcile()
        life.wait(POLL_SECONDS)
    assert life.api.written[before:].count("apply Job vit-0") == 10
    assert life.status["restarts"] == 0


def test_resume_waits_for_leaving_workers() -> None:
    life = Life().run()
    pod = stuck_worker(life)
    ended = {"name": n.WORKER_CONTAINER, "state": {"terminated": {"exitCode": 2}}}
    pod["status"] = {"phase": "Failed", "containerStatuses": [ended]}
    life.reconcile()
    assert life.message.endswith("the controller resumes it 30 s later")
    life.wait(POLL_SECONDS)
    assert suspended(life)
    assert life.shown("phase", "restarts") == ("Running", 0)
    name = life.names("Pod")[0]
    assert life.message.endswith(f"when pod {name} is gone; if its node does not answer, delete the pod")
    life.api.objects["Pod", name]["metadata"]["stuck"] = False
    life.settle()
    assert not suspended(life)
    life.run()


def test_worker_that_failed_before_a_suspension_restarts() -> None:
    life = Life().run()
    life.api.objects["Pod", life.names("Pod")[0]]["status"]["phase"] = "Failed"
    suspend(life)
    life.reconcile()
    assert life.shown("attempt", "restarts") == (1, 1)


@pytest.mark.parametrize(("by", "ahead"), [(n.FIELD_MANAGER, 0), ("kueue", 600)])
def test_suspension_is_resumed_at_once(by: str, ahead: int) -> None:
    """One of the controller itself, and one whose time is far in the future."""
    life = Life().run()
    life.api.now += ahead
    suspend(life, by=by)
    life.api.now -= ahead
    life.settle()
    assert not suspended(life)
