"""Edits of a job that has started, and reconciles that come late."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import DIGEST, queue
from trainyard.operator import names as n
from trainyard.operator.api.fields import parse_time
from trainyard.operator.reconciler import plan_job, reject_request

pytestmark = pytest.mark.unit

# Out of a backup, or from before a change of the schema.
WRONG: list[dict[str, Any]] = [
    {"activeDeadlineSeconds": "soon"},
    {"maxRestarts": -1},
    {"elastic": {"minNodes": 3, "maxNodes": "many"}},
    {"command": ""},
]


def once(life: Life) -> None:
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    children = [each for each in life.api.list() if each["kind"] not in (n.JOB_KIND, n.QUEUE_KIND)]
    its_queue = life.api.get(n.QUEUE_KIND, "research")
    life.api.apply(item, plan_job(item, its_queue, children, life.cluster, life.api.now))
    life.api.settle()


@pytest.mark.parametrize("edit", [
    {"ttlSecondsAfterFinished": 2_000_000_000},
    {"activeDeadlineSeconds": 2_000_000_000},
    {"workspace": {"digest": DIGEST, "sizeBytes": 20_000_000_000}},
])  # fmt: skip
def test_large_numbers_do_not_stop_running_workers(edit: dict[str, Any]) -> None:
    life = Life().run()
    life.api.edit(n.JOB_KIND, "vit", **edit)
    life.reconcile()
    assert (life.status["phase"], life.condition(n.ACCEPTED)[0]) == ("Running", "True")
    assert len(life.api.workers()) == 2


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_edit_does_not_end_a_started_job(wrong: dict[str, Any]) -> None:
    life = Life().run()
    sound = life.api.objects[n.JOB_KIND, "vit"]["spec"]
    life.api.edit(n.JOB_KIND, "vit", **wrong)
    life.api.now += 1000
    life.reconcile()
    assert (life.status["phase"], life.condition(n.ACCEPTED)) == ("Running", ("False", "InvalidSpec"))
    (field,) = wrong
    assert f"spec.{field}" in next(
        each["message"] for each in life.status["conditions"] if each["type"] == n.ACCEPTED
    )
    # The next attempt is not made as nobody asked for it; it begins once the job can be read again.
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Restarting", "InvalidSpec")
    assert life.names("Job") == []
    life.api.objects[n.JOB_KIND, "vit"]["spec"] = sound
    life.api.touch(life.api.objects[n.JOB_KIND, "vit"])
    life.run()
    assert (life.status["attempt"], life.status["restarts"]) == (1, 1)
    assert life.condition(n.ACCEPTED)[0] == "True"


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_edit_allows_success_and_suspension(wrong: dict[str, Any]) -> None:
    well, suspended = Life().run(), Life().run()
    for life in (well, suspended):
        life.api.edit(n.JOB_KIND, "vit", **wrong)
        life.reconcile()
    well.api.run_pods("Succeeded", exit_code=0)
    well.reconcile()
    assert well.status["phase"] == "Succeeded"
    suspended.api.edit(n.JOB_KIND, "vit", suspend=True)
    suspended.reconcile()
    assert (suspended.status["phase"], suspended.names("Job")) == ("Suspended", [])
    assert suspended.condition(n.ACCEPTED) == ("False", "InvalidSpec")


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_edit_before_the_first_start_fails(wrong: dict[str, Any]) -> None:
    life = Life({"suspend": True})
    life.reconcile()
    life.api.edit(n.JOB_KIND, "vit", **wrong)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "InvalidSpec")


def test_attempt_in_the_status_counts_as_started() -> None:
    life = Life()
    once(life)
    life.api.edit(n.JOB_KIND, "vit", **WRONG[0])
    life.reconcile()
    assert life.status["phase"] == "Provisioning"
    assert len(life.api.workers()) == 2


def test_deadline_counts_from_the_start_of_the_workers() -> None:
    life = Life({"activeDeadlineSeconds": 100})
    once(life)
    once(life)
    began = life.api.now
    life.api.run_pods("Running")
    life.api.now += 60
    once(life)
    assert parse_time(life.status["startTime"]) == began
    life.api.now += 40
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 2)])
def test_job_that_ends_unseen_has_its_start_time(phase: str, code: int) -> None:
    life = Life()
    once(life)
    once(life)
    began = life.api.now
    life.api.now += 500
    life.api.run_pods(phase, exit_code=code)
    life.reconcile()
    assert life.status["phase"] == phase
    assert parse_time(life.status["startTime"]) == began


def test_finished_job_observes_an_edit() -> None:
    life = Life({"numGPUs": 8}).run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    before, events = life.status, list(life.api.events)
    life.api.edit(n.JOB_KIND, "vit", ttlSecondsAfterFinished=1000)
    life.reconcile()
    assert life.status == {**before, "observedGeneration": 2}
    assert life.api.events == events
    assert (life.requeue_after, life.reconcile()) == (1000, 0)


def test_deadline_of_a_suspended_job_ends_the_suspension() -> None:
    life = Life({"numGPUs": 8, "activeDeadlineSeconds": 100}).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    life.api.now += 200
    life.reconcile()
    assert life.condition(n.SUSPENDED) == ("False", "DeadlineExceeded")


@pytest.mark.parametrize("of_queue", [{}, {"storage.workspace": {"enabled": True, "size": "1Gi"}}])
def test_same_size_in_another_field_does_not_restart(of_queue: dict[str, Any]) -> None:
    life = Life({"numGPUs": 16}, of_queue).run()
    life.api.edit(n.JOB_KIND, "vit", numNodes=2)
    life.reconcile()
    assert (life.status["phase"], life.status["attempt"]) == ("Running", 0)
    life.api.edit(n.JOB_KIND, "vit", numNodes=4)
    life.reconcile()
    assert (life.status["attempt"], life.status["nodes"]) == (1, 4)
    life.run()
    # Left to a queue that has smaller nodes by now.
    smaller = queue({**of_queue, "nodeResources.gpus": 2})
    life.api.edit(n.QUEUE_KIND, "research", **smaller["spec"])
    life.api.objects[n.JOB_KIND, "vit"]["spec"].pop("numNodes")
    life.api.touch(life.api.objects[n.JOB_KIND, "vit"])
    life.reconcile()
    assert (life.status["attempt"], life.status["nodes"]) == (2, 8)


def test_corrected_edit_of_a_suspended_job_is_unknown() -> None:
    life = Life().run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.condition(n.ACCEPTED) == ("True", "Valid")
    life.api.edit(n.JOB_KIND, "vit", maxRestarts=-1)
    life.reconcile()
    assert life.condition(n.ACCEPTED) == ("False", n.REASON_INVALID_SPEC)
    life.api.edit(n.JOB_KIND, "vit", maxRestarts=2)
    life.reconcile()
    assert life.condition(n.ACCEPTED) == ("Unknown", n.REASON_SUSPENDED)
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.run()
    assert life.condition(n.ACCEPTED) == ("True", "Valid")


def test_refusal_is_not_reported_of_a_suspended_job() -> None:
    life = Life().run()
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    life.api.apply(item, reject_request(item, "exceeded quota", life.api.now))
    assert life.condition(n.ACCEPTED) == ("False", n.REASON_REFUSED)
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.condition(n.ACCEPTED) == ("Unknown", n.REASON_SUSPENDED)


def test_unreadable_limit_of_restarts_ends_nothing() -> None:
    life = Life({"maxRestarts": None}, {"jobDefaults.maxRestarts": 10}).run()
    for restart in range(1, 6):
        if restart == 5:
            life.api.edit(n.QUEUE_KIND, "research", image=5)
        life.api.run_pods("Failed", exit_code=1)
        life.reconcile()
        assert (life.status["phase"], life.status["restarts"]) != ("Failed", restart)
        if restart < 5:
            life.run()
    assert (life.status["phase"], life.status["restarts"]) == ("Restarting", 5)


def found(life: Life) -> str:
    """Return the message of the condition QueueFound."""
    return next(each["message"] for each in life.status["conditions"] if each["type"] == n.QUEUE_FOUND)


def test_message_of_a_missing_queue_depends_on_the_phase() -> None:
    gone = "TorchrunQueue research is not in namespace team; "
    life = Life(queued=False)
    life.reconcile()
    assert found(life) == gone + "the job begins when it is there"
    life.api.create(life.queue)
    life.run()
    del life.api.objects[n.QUEUE_KIND, "research"]
    life.reconcile()
    assert life.condition(n.QUEUE_FOUND) == ("False", n.REASON_QUEUE_NOT_FOUND)
    running = "the workers go on; what needs the queue, such as a restart, waits until it is there"
    assert found(life) == gone + running
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Restarting", n.REASON_QUEUE_NOT_FOUND)
    assert found(life) == life.status["message"] == gone + "the workers restart when it is there"
    life.api.create(life.queue)
    life.run()
    assert (life.status["attempt"], life.condition(n.QUEUE_FOUND)[0]) == (1, "True")
