"""Another controller or a user suspends the Job of a running attempt."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life
from trainyard.operator import names as n
from trainyard.operator.plan import POLL_SECONDS

pytestmark = pytest.mark.unit


def suspend(life: Life, name: str = "vit-0", *, by: str = "kueue") -> None:
    """Suspend a Job as another field manager."""
    job = life.api.objects["Job", name]
    job["spec"]["suspend"] = True
    wrote: list[dict[str, Any]] = [
        {"manager": n.FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:completions": {}}}},
        {"manager": by, "time": stamp(life.api.now), "fieldsV1": {"f:spec": {"f:suspend": {}}}},
        {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]
    job["metadata"]["managedFields"] = wrote
    life.api.touch(job)


def suspended(life: Life) -> bool:
    return bool(life.api.objects["Job", "vit-0"]["spec"]["suspend"])


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
    assert (life.names("Job"), life.status["attempt"], life.status["restarts"]) == (["vit-0"], 0, 0)


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
    pod = life.api.objects["Pod", life.names("Pod")[0]]
    pod["metadata"]["stuck"] = True
    suspend(life)
    life.api.settle()
    pod["status"]["phase"] = "Failed"
    pod["status"]["containerStatuses"] = [
        {"name": n.WORKER_CONTAINER, "state": {"terminated": {"exitCode": 2}}}
    ]
    life.reconcile()
    life.wait(POLL_SECONDS)
    assert suspended(life)
    assert life.shown("phase", "restarts") == ("Running", 0)
    pod["metadata"]["stuck"] = False
    life.settle()
    assert not suspended(life)
    life.run()


def test_worker_that_failed_before_a_suspension_restarts() -> None:
    life = Life().run()
    life.api.objects["Pod", life.names("Pod")[0]]["status"]["phase"] = "Failed"
    suspend(life)
    life.reconcile()
    assert life.shown("attempt", "restarts") == (1, 1)


def test_suspension_by_the_controller_is_resumed_at_once() -> None:
    """The controller creates suspended Jobs, and resumes them at once."""
    life = Life().begin()
    suspend(life, by=n.FIELD_MANAGER)
    life.reconcile()
    assert not suspended(life)


def test_stuck_worker_of_a_suspended_job_is_reported() -> None:
    life = Life().run()
    life.api.now += 5
    name = life.names("Pod")[0]
    life.api.objects["Pod", name]["metadata"]["stuck"] = True
    suspend(life)
    life.settle()
    assert life.message.endswith("the controller resumes it 30 s later")
    life.wait(40)
    reported = (
        f"the controller resumes it when pod {name} is gone; if its node does not answer, delete the pod"
    )
    assert life.message.endswith(reported)


def test_suspension_from_the_future_is_resumed_at_once() -> None:
    life = Life().run()
    life.api.now += 600
    suspend(life)
    life.api.now -= 600
    life.settle()
    assert not suspended(life)
