"""A failed or lost worker restarts all workers, after a pause from the second restart on."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.life import Life, Pooled
from tests.unit.operator.made import job as made_job
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.plan import POLL_SECONDS


def test_all_restarts_count_against_one_limit() -> None:
    life = Life({"maxRestarts": 2})
    for _ in range(3):
        life.run()
        life.fail(7, only=1)
    assert life.state == ("Failed", "RestartsUsedUp")
    assert life.shown("restarts", "exitCode") == (2, 7)
    assert life.message.endswith("2 of 2 restarts were used")
    assert life.names("Job") == ["vit-2"]  # kept, with the pod that failed
    assert any(each["status"]["phase"] == "Failed" for each in life.api.list("Pod"))


@pytest.mark.parametrize(("asked", "code", "reason"), [
    ({"restartPolicy": "Never"}, 7, "WorkerFailed"),
    *(({}, code, "NotRestartable") for code in names.WORKER_FINAL_EXIT_CODES),
])  # fmt: skip
def test_failure_that_is_not_restartable_fails_the_job(asked: dict[str, Any], code: int, reason: str) -> None:
    life = Life(asked).run()
    life.fail(code, only=0)
    assert life.shown("phase", "reason", "exitCode") == ("Failed", reason, code)
    assert life.status["workers"] == {"active": 0, "ready": 0, "succeeded": 0, "failed": 1}


def test_exit_code_is_that_of_the_command() -> None:
    said = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 2 (pid: 7) \n"
    life = Life().run()
    life.fail(message=said, only=0)
    assert life.shown("reason", "exitCode") == ("NotRestartable", 2)
    assert "exit code 2 means that the command or its arguments are wrong" in life.message


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI"])
@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_disruption_of_a_worker_stays_reported(phase: str, reason: str) -> None:
    life = Life().run()
    lost = life.names("Pod")[0]
    pod = life.api.objects["Pod", lost]
    pod["metadata"]["stuck"] = True
    pod["status"] |= {
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}],
        "phase": phase,
    }
    life.api.delete("Pod", lost)
    life.settle()
    pod["metadata"]["stuck"] = False
    life.settle()
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


def test_pod_rejected_by_the_kubelet_shows_its_message() -> None:
    life = Life({"restartPolicy": "Never"}).run()
    pod = life.api.workers()[0]
    said = "Allocate failed due to no healthy devices present,\n which is unexpected"
    pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": said}
    life.settle()
    reported = f"failed (UnexpectedAdmissionError): {said.replace(chr(10), '')}"
    assert life.message == f"worker {pod['metadata']['name']} on node n0 {reported}"


def recreate_beside_orphans(life: Life) -> None:
    """`kubectl delete torchrunjob vit --cascade=orphan`, then create another job of the name."""
    for key in (("Job", "vit-0"), ("Service", "vit")):
        del life.api.objects[key]["metadata"]["ownerReferences"]
    del life.api.objects[n.JOB_KIND, "vit"]
    life.api.create(made_job())
    life.reconcile()


@pytest.mark.parametrize("is_finished", [False, True])
def test_objects_of_an_earlier_job_are_reported(is_finished: bool) -> None:
    life = Life().run()
    if is_finished:
        life.succeed()
    recreate_beside_orphans(life)
    assert life.status["reason"] == n.REASON_NAME_TAKEN
    reported = "the job needs this name, which is taken. Delete the object, or rename the job."
    assert life.message == f"Service vit, Job vit-0: {reported}"
    assert life.requeue_after == POLL_SECONDS
    del life.api.objects["Service", "vit"], life.api.objects["Job", "vit-0"]
    life.api.settle()
    life.run()


def test_stuck_pod_delays_the_next_attempt() -> None:
    life = Life().run()
    stuck = life.names("Pod")[0]
    life.api.objects["Pod", stuck]["metadata"]["stuck"] = True
    life.api.delete("Pod", stuck)
    life.settle()
    assert life.state == ("Restarting", n.REASON_STOPPING)
    assert life.api.events[-2:] == [n.REASON_WORKER_FAILED, n.REASON_STOPPING]
    assert life.api.warning_reasons == [n.REASON_WORKER_FAILED]
    assert life.message == f"the workers of the earlier attempt stop: Job vit-0, pod {stuck} on n0"
    life.wait(life.requeue_after or 0)
    assert life.message.endswith(
        f"pod {stuck} on n0. This takes longer than usual. If a node does not answer, delete it"
    )
    assert life.names("Job") == ["vit-0"]
    life.api.objects["Pod", stuck]["metadata"]["stuck"] = False
    life.settle()
    assert life.names("Job") == ["vit-1"]


@pytest.mark.parametrize(
    ("edit", "jobs"), [({}, ["vit-1"]), ({"suspend": True}, []), ({"maxRestarts": 0}, [])]
)
def test_orphaned_workers_are_deleted(edit: dict[str, Any], jobs: list[str]) -> None:
    """After `kubectl delete job vit-0 --cascade=orphan` no garbage collector deletes these workers."""
    life = Life().run()
    life.api.edit(n.JOB_KIND, "vit", **edit)
    del life.api.objects["Job", "vit-0"]
    orphans = life.names("Pod")
    for each in life.api.workers():
        del each["metadata"]["ownerReferences"]
    life.settle()
    assert not set(orphans) & set(life.names("Pod"))
    assert life.names("Job") == jobs


def fails(life: Life, times: int = 1) -> Life:
    for _ in range(times):
        life.api.run_pods("Running")
        life.reconcile()
        life.fail(only=0)
    return life


def test_backoff_doubles_from_the_second_restart() -> None:
    life = Life({"maxRestarts": 9}).begin()
    pauses = []
    for attempt in range(1, 10):
        began = fails(life).api.now
        while life.names("Job") != [f"vit-{attempt}"]:
            assert life.state == (n.PHASE_RESTARTING, n.REASON_BACKING_OFF)
            assert life.names("Job") == [f"vit-{attempt - 1}"]
            assert life.requeue_after
            life.wait(life.requeue_after)
        pauses.append(life.api.now - began)
    assert pauses == [0, 10, 20, 40, 80, 160, 320, 360, 360]


def test_backoff_keeps_the_failed_job_for_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    life = fails(Life().begin())
    life.api.run_pods("Running")
    life.reconcile()
    life.api.run_pods("Failed", exit_code=1, only=0)
    with monkeypatch.context() as later:  # the Job controller reports the failure later
        later.setattr(life.api, "settle", lambda: None)
        life.reconcile()
    assert life.names("Job") == ["vit-1"]
    life.settle()
    assert life.status["reason"] == n.REASON_BACKING_OFF
    (failed,) = (each for each in life.api.list("Pod") if each["status"]["phase"] == "Failed")
    assert failed["metadata"]["labels"][n.LABEL_ATTEMPT] == "1"
    life.wait(10)
    assert life.names("Job") == ["vit-2"]


def test_backoff_stops_the_running_workers() -> None:
    life = fails(Life({}, {"storage.workspace": {"enabled": True, "size": "1Gi"}}).begin(), 2)
    assert life.status["reason"] == n.REASON_BACKING_OFF
    assert (life.names("Job"), life.api.workers()) == (["vit-1"], [])


def test_backoff_message_has_the_time_and_is_written_once() -> None:
    life = fails(Life().begin(), 2)
    last = life.status["lastRestart"]
    assert life.message == f"{last['message']}; the restart comes 10 s after {last['time']}"
    assert last["message"].endswith(" ended with exit code 1; restart 2 of 3")
    assert (life.requeue_after or 0) <= 10
    life.api.now += 5
    assert life.reconcile() == 0
    assert 4 <= (life.requeue_after or 0) <= 5
    life.api.now -= 7200  # the clock is corrected
    life.reconcile()
    assert (life.requeue_after or 0) <= 10


def test_suspension_during_a_backoff_ends_it() -> None:
    life = fails(Life().begin(), 2)
    life.edit(suspend=True)
    assert life.status["phase"] == n.PHASE_SUSPENDED
    life.edit(suspend=False)
    assert life.status["phase"] == n.PHASE_PROVISIONING, "a user wants it now"


def test_backoff_does_not_apply_to_a_resize() -> None:
    life = fails(Life({"maxRestarts": 5}).begin(), 2).run()
    life.edit(numNodes=4)
    assert life.shown("phase", "attempt") == (n.PHASE_PROVISIONING, 3)
    assert "; restart 2 of 5" in life.status["lastRestart"]["message"]


def test_backoff_keeps_the_placeholders_of_a_pool() -> None:
    life = Pooled()
    for _ in range(2):
        life.turn(2)
        life.api.turn()
        fails(life)
    assert life.status["reason"] == n.REASON_BACKING_OFF
    machines = sorted(life.api.nodes)
    assert len(life.api.placeholders()) == 2
    life.turn()
    assert 0 < (life.requeue_after or 0) <= 10
    life.later(10)
    life.turn()
    assert life.status["phase"] == n.PHASE_PROVISIONING
    assert sorted(life.api.nodes) == machines
