"""Workers that fail or are lost: all of them begin again, and what is reported of why."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life
from tests.unit.operator.made import job as made_job
from trainyard.operator import names as n

pytestmark = pytest.mark.unit


def test_a_failed_worker_ends_the_gang_and_the_next_meets_under_another_id() -> None:
    life = Life().run()
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.reconcile()
    assert life.names("Job") == ["vit-1"]
    assert (life.status["attempt"], life.status["restarts"]) == (1, 1)
    words = life.api.list("Job")[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert any(each.endswith("-1") and each.startswith("--rdzv-id=") for each in words)
    assert "WorkerFailed" in life.api.events
    life.run()
    assert life.status["restarts"] == 1


def test_one_budget_for_all_restarts() -> None:
    life = Life({"maxRestarts": 2})
    for _ in range(3):
        life.run()
        life.api.run_pods("Failed", exit_code=7, only=1)
        life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "RestartsUsedUp")
    assert (life.status["restarts"], life.status["exitCode"]) == (2, 7)
    assert life.status["message"].endswith("2 of 2 restarts were used")
    assert life.names("Job") == ["vit-2"]  # kept, with the pod that failed
    assert any(each["status"]["phase"] == "Failed" for each in life.api.list("Pod"))


@pytest.mark.parametrize(("asked", "code", "reason"), [
    ({"restartPolicy": "Never"}, 1, "WorkerFailed"),
    ({}, 127, "NotRestartable"),
])  # fmt: skip
def test_what_is_not_restarted(asked: dict[str, Any], code: int, reason: str) -> None:
    life = Life(asked).run()
    life.api.run_pods("Failed", exit_code=code, only=0)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"], life.status["exitCode"]) == ("Failed", reason, code)


def test_the_exit_code_is_the_commands_and_not_torchruns() -> None:
    said = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 2 (pid: 7) \n"
    life = Life({}).run()
    life.api.run_pods("Failed", exit_code=1, message=said, only=0)
    life.reconcile()
    assert (life.status["reason"], life.status["exitCode"]) == ("NotRestartable", 2)
    assert "ended with exit code 2" in life.status["message"]


def test_a_lost_worker_is_a_failed_one() -> None:
    life = Life().run()
    life.api.delete("Pod", life.names("Pod")[0])
    life.api.settle()
    life.reconcile()
    assert (life.status["attempt"], life.status["restarts"]) == (1, 1)


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI"])
@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_who_took_a_worker_away_is_reported_and_stays_reported(phase: str, reason: str) -> None:
    life = Life().run()
    lost = life.names("Pod")[0]
    pod = life.api.objects["Pod", lost]
    pod["metadata"]["stuck"] = True
    pod["status"] |= {
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}],
        "phase": phase,
    }
    life.api.delete("Pod", lost)
    life.api.settle()
    life.reconcile()
    pod["metadata"]["stuck"] = False
    life.api.settle()
    life.reconcile()
    worker = f"worker {lost} on node n0"
    how = f"Job vit-0 failed: {worker} is lost" if phase == "Running" else f"{worker} failed"
    assert life.status["lastRestart"] == {
        "attempt": 0,
        "time": stamp(life.api.now),
        "message": f"{how} ({reason}); restart 1 of 3",
    }
    life.api.run_pods("Running")
    life.reconcile()
    assert life.status["phase"] == "Running"
    assert life.status["lastRestart"]["attempt"] == 0


def test_what_the_kubelet_says_of_a_pod_that_it_did_not_take_is_reported() -> None:
    life = Life({"restartPolicy": "Never"}).run()
    pod = life.api.workers()[0]
    said = (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    )
    pod["status"] = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": f"{said},\n which is unexpected",
    }
    life.api.settle()
    life.reconcile()
    name = pod["metadata"]["name"]
    reported = f"worker {name} on node n0 failed (UnexpectedAdmissionError): {said}, which is unexpected"
    assert life.status["message"] == reported


def made_anew_beside_what_it_left(life: Life) -> None:
    """`kubectl delete torchrunjob vit --cascade=orphan`, and another one of the name."""
    for key in (("Job", "vit-0"), ("Service", "vit")):
        del life.api.objects[key]["metadata"]["ownerReferences"]
    del life.api.objects[n.JOB_KIND, "vit"]
    requeue_after = made_job()
    requeue_after["metadata"]["namespace"] = "team"
    life.api.create(requeue_after)
    life.reconcile()


def test_workers_that_are_over_and_whose_job_was_deleted_without_them_are_in_nobodys_way() -> None:
    life = Life().run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    made_anew_beside_what_it_left(life)
    assert life.status["reason"] == n.REASON_NAME_TAKEN
    assert life.status["message"] == (
        "Service vit, Job vit-0 belong to something else; the job begins when they are gone: "
        "kubectl delete service/vit job/vit-0, which an earlier job of the name left"
    )
    del life.api.objects["Service", "vit"]
    life.api.objects["Job", "vit-0"]["metadata"]["labels"][n.LABEL_MANAGED_BY] = "somebody"
    life.reconcile()
    assert life.status["message"] == "Job vit-0 belongs to something else; the job begins when it is gone"


def test_workers_that_run_and_whose_job_was_deleted_without_them_are_reported_with_what_ends_them() -> None:
    life = Life().run()
    made_anew_beside_what_it_left(life)
    assert life.status["reason"] == n.REASON_NAME_TAKEN
    assert "kubectl delete service/vit job/vit-0" in life.status["message"]
    for key in (("Service", "vit"), ("Job", "vit-0")):
        del life.api.objects[key]
    life.api.settle()
    life.run()


def test_a_job_that_is_over_has_no_workers_that_run() -> None:
    life = Life({"restartPolicy": "Never"}).run()
    life.api.run_pods("Failed", exit_code=7, only=1)
    life.reconcile()
    assert (life.status["phase"], life.status["exitCode"]) == ("Failed", 7)
    assert life.status["workers"] == {"active": 0, "ready": 0, "succeeded": 0, "failed": 1}


def test_a_pod_on_a_node_that_does_not_answer_keeps_the_next_attempt_away() -> None:
    life = Life().run()
    stuck = life.names("Pod")[0]
    life.api.objects["Pod", stuck]["metadata"]["stuck"] = True
    life.api.delete("Pod", stuck)
    life.api.settle()
    life.reconcile()
    assert life.status["phase"] == "Restarting"
    assert f"pod {stuck} on n0; if a node does not answer, delete it" in life.status["message"]
    assert life.names("Job") == ["vit-0"]
    life.api.objects["Pod", stuck]["metadata"]["stuck"] = False
    life.api.settle()
    life.reconcile()
    assert life.names("Job") == ["vit-1"]


def test_a_running_attempts_job_that_is_deleted_counts_as_a_restart() -> None:
    life = Life().run()
    life.api.delete("Job", "vit-0")
    life.api.settle()
    life.reconcile()
    assert life.names("Job") == ["vit-1"]
    assert life.status["restarts"] == 1


def test_workers_that_no_job_owns_any_more_are_named_with_what_ends_them() -> None:
    """`kubectl delete job vit-0 --cascade=orphan`: they would run on for ever, and the next attempt wait for them."""
    life = Life().run()
    del life.api.objects["Job", "vit-0"]
    pods = life.api.list("Pod")
    for each in pods:
        life.api.objects["Pod", each["metadata"]["name"]]["metadata"].pop("ownerReferences")
    life.reconcile()
    first, second = sorted(each["metadata"]["name"] for each in pods)
    assert life.status["reason"] == n.REASON_STOPPING
    assert f"no Job owns {first} any more: kubectl delete pod {first} {second}" in life.status["message"]
    assert life.names("Job") == []
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.condition(n.SUSPENDED) == ("False", n.REASON_STOPPING)
    reported = "the workers are being stopped; no Job owns"
    assert life.status["message"] == f"{reported} {first} any more: kubectl delete pod {first} {second}"
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    for each in (first, second):
        life.api.objects.pop(("Pod", each))
    life.reconcile()
    assert life.names("Job") == ["vit-1"]
