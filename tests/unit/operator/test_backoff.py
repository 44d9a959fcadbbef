"""The pause before a worker that failed again and again is restarted."""

from __future__ import annotations

import pytest

from tests.unit.operator.life import Life, Pooled
from trainyard.operator import names as n

pytestmark = pytest.mark.unit


def fails(life: Life) -> None:
    life.api.run_pods("Running")
    life.reconcile()
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.reconcile()


def test_the_first_restart_comes_at_once_and_each_later_one_after_twice_the_time() -> None:
    life = Life({"maxRestarts": 9})
    life.reconcile()
    pauses = []
    for attempt in range(1, 10):
        fails(life)
        began = life.api.now
        while life.names("Job") != [f"vit-{attempt}"]:
            assert life.status["phase"] == n.PHASE_RESTARTING
            assert life.status["reason"] == n.REASON_BACKING_OFF
            assert life.names("Job") == [f"vit-{attempt - 1}"]
            assert life.requeue_after
            life.api.now += life.requeue_after
            life.reconcile()
        pauses.append(life.api.now - began)
    assert pauses == [0, 10, 20, 40, 80, 160, 320, 360, 360]


def test_what_failed_is_there_for_its_log_until_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    life.reconcile()
    fails(life)
    life.api.run_pods("Running")
    life.reconcile()
    life.api.run_pods("Failed", exit_code=1, only=0)
    with monkeypatch.context() as later:  # the Job controller says later that it failed
        later.setattr(life.api, "settle", lambda: None)
        life.reconcile()
    assert life.names("Job") == ["vit-1"]
    life.api.settle()
    life.reconcile()
    assert life.status["reason"] == n.REASON_BACKING_OFF
    (failed,) = (each for each in life.api.list("Pod") if each["status"]["phase"] == "Failed")
    assert failed["metadata"]["labels"][n.LABEL_ATTEMPT] == "1"
    life.api.now += 10
    life.reconcile()
    assert life.names("Job") == ["vit-2"]


def test_workers_of_each_node_that_still_run_are_stopped_at_once() -> None:
    life = Life({}, {"storage.workspace": {"enabled": True, "size": "1Gi"}})
    life.reconcile()
    fails(life)
    fails(life)
    assert life.status["reason"] == n.REASON_BACKING_OFF
    assert life.names("Job") == ["vit-1"]
    assert life.api.workers() == []


def test_a_pause_says_until_when_and_is_written_once() -> None:
    life = Life()
    life.reconcile()
    fails(life)
    fails(life)
    last = life.status["lastRestart"]
    assert life.status["message"] == f"{last['message']}, 10 s after {last['time']}"
    assert last["message"].endswith(" ended with exit code 1; restart 2 of 3")
    assert (life.requeue_after or 0) <= 10
    life.api.now += 5
    assert life.reconcile() == 0
    assert 4 <= (life.requeue_after or 0) <= 5


def test_what_is_asked_for_meanwhile_holds() -> None:
    life = Life()
    life.reconcile()
    fails(life)
    fails(life)
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.status["phase"] == n.PHASE_SUSPENDED
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.reconcile()
    assert life.status["phase"] == n.PHASE_PROVISIONING, "somebody wants it now"


def test_another_size_or_workspace_is_no_failure() -> None:
    life = Life({"maxRestarts": 5}).run()
    fails(life)
    life.run()
    fails(life)
    life.run()
    life.api.edit(n.JOB_KIND, "vit", numNodes=4)
    life.reconcile()
    assert (life.status["phase"], life.status["attempt"]) == (n.PHASE_PROVISIONING, 3)
    assert "; restart 2 of 5" in life.status["lastRestart"]["message"]


def test_a_clock_that_was_set_back_makes_no_pause_longer() -> None:
    life = Life()
    life.reconcile()
    fails(life)
    fails(life)
    life.api.now -= 7200
    life.reconcile()
    assert (life.requeue_after or 0) <= 10


def test_machines_of_a_pool_are_held_meanwhile() -> None:
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
