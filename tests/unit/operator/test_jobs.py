"""The life of a TorchrunJob, plan by plan, on a small API server: its start, its edits and its end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER, DIGEST, job, queue
from trainyard.operator import names as n
from trainyard.operator.api.fields import parse_time
from trainyard.operator.context import build_context
from trainyard.operator.plan import POLL_SECONDS, SCHEDULER_SECONDS, ReconcilePlan
from trainyard.operator.reconciler import plan_job, reject_request

SMALL = {"numGPUs": 8}
SENT = {"digest": DIGEST, "sizeBytes": 3}
OTHER = {**SENT, "digest": "sha256:" + "b" * 64}
OWN = {"storage.workspace": {"enabled": True, "size": "1Gi"}}
# Out of a backup, or from before a change of the schema.
WRONG: list[dict[str, Any]] = [
    {"activeDeadlineSeconds": "soon"},
    {"maxRestarts": -1},
    {"elastic": {"minNodes": 3, "maxNodes": "many"}},
    {"command": ""},
]


def message(life: Life, kind: str) -> str:
    return next(str(each["message"]) for each in life.status["conditions"] if each["type"] == kind)


def once(life: Life) -> None:
    """Apply one plan."""
    life.api.apply(life.job, life.plan(life.api.list("Service", "Job", "Pod")))
    life.api.settle()


def test_job_from_submit_to_success() -> None:
    life = Life().begin()
    assert (life.names("Job"), life.names("Service"), len(life.names("Pod"))) == (["vit-0"], ["vit"], 2)
    assert life.status["phase"] == "Provisioning"
    life.run()
    assert life.condition(n.WORKERS_READY) == ("True", "Running")
    assert life.shown("attempt", "restarts", "nodes", "gpusPerNode", "gpus") == (0, 0, 2, 8, 16)
    assert life.status["workers"] == {"active": 2, "ready": 2, "succeeded": 0, "failed": 0}
    life.succeed()
    assert life.shown("phase", "exitCode") == ("Succeeded", 0)
    assert life.condition(n.COMPLETE)[0] == "True"
    assert life.names("Job") == ["vit-0"]  # for its pods' logs
    life.wait(10**9)  # without a time to live
    assert (life.reconcile(), life.requeue_after, life.status["phase"]) == (0, None, "Succeeded")


def test_plan_of_a_deleting_job_is_empty() -> None:
    item = job()
    item["metadata"] |= {"uid": "u", "deletionTimestamp": "2027-01-01T00:00:00Z"}
    assert plan_job(build_context(item, queue(), [], CLUSTER, 0.0)) == ReconcilePlan()


def test_suspend_while_running_deletes_workers() -> None:
    life = Life(SMALL, OWN).run()
    life.edit(suspend=True)
    assert life.status["phase"] == "Suspended"
    assert life.condition(n.SUSPENDED) == ("True", "Suspended")
    assert life.names("Job") == life.names("Pod") == []
    assert life.names("PersistentVolumeClaim") == ["vit-workspace"]
    assert life.reconcile() == 0
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.run()
    assert life.shown("attempt", "restarts") == (1, 0)
    assert life.condition(n.SUSPENDED)[0] == "False"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (24, "Suspended")])
def test_suspend_counts_only_a_success(code: int, phase: str) -> None:
    life = Life({**SMALL, "maxRestarts": 0}).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.fail(code) if code else life.succeed()
    assert life.shown("phase", "restarts") == (phase, 0)


def test_finished_job_edited_is_never_run_again() -> None:
    life = Life(SMALL).run()
    life.succeed()
    before, events = life.status, list(life.api.events)
    life.api.delete("Job", "vit-0")
    life.api.settle()
    life.edit(suspend=False, numNodes=2, ttlSecondsAfterFinished=1000)
    assert life.names("Job") == []
    assert life.status == {**before, "observedGeneration": 2}
    assert life.api.events == events
    assert (life.requeue_after, life.reconcile()) == (1000, 0)


def test_queue_missing_delays_starts_and_keeps_workers() -> None:
    gone = "TorchrunQueue research is not in namespace team. Create it. "
    life = Life(queued=False).begin()
    assert life.state == ("Pending", "QueueNotFound")
    assert life.condition(n.QUEUE_FOUND) == ("False", "QueueNotFound")
    assert message(life, n.QUEUE_FOUND) == life.message == gone + "The job then starts."
    assert life.names("Service") == life.names("Job") == []
    life.api.create(life.queue)
    life.run()
    assert life.condition(n.QUEUE_FOUND)[0] == "True"
    del life.api.objects[n.QUEUE_KIND, "research"]
    life.reconcile()
    assert life.status["phase"] == "Running"
    assert message(life, n.QUEUE_FOUND) == gone + "The workers go on, but a restart waits for the queue."
    life.fail()
    assert life.state == ("Restarting", "QueueNotFound")
    assert message(life, n.QUEUE_FOUND) == life.message == gone + "The workers then restart."
    assert life.names("Job") == []
    life.api.create(life.queue)
    life.run()
    assert life.status["attempt"] == 1


def test_queue_being_deleted_starts_nothing_keeps_running() -> None:
    running, waiting = Life().run(), Life({"suspend": True}).begin()
    for life in (running, waiting):
        life.api.objects[n.QUEUE_KIND, "research"]["metadata"]["finalizers"] = [n.QUEUE_FINALIZER]
        life.api.delete(n.QUEUE_KIND, "research")
    waiting.edit(suspend=False)
    assert waiting.state == ("Pending", "QueueNotFound")
    assert "is being deleted" in waiting.message
    assert waiting.names("Job") == []
    running.api.run_pods("Failed", exit_code=1)
    running.run()
    assert running.shown("phase", "restarts") == ("Running", 1)


def test_queue_edited_keeps_a_running_attempt() -> None:
    life = Life().run()
    before = life.api.list("Job")
    life.edit_queue(image="team/pytorch:2")
    assert life.api.list("Job") == before
    # An earlier version of the controller marked no Jobs.
    del life.api.objects["Job", "vit-0"]["metadata"]["annotations"][n.ANNOTATION_MADE_OF]
    assert life.reconcile() == 0
    life.edit_queue(nodeResources={"gpus": 0, "cpus": 1, "memory": "1Gi"})
    assert life.status["phase"] == "Running"
    life.fail()
    assert life.state == ("Restarting", "InvalidSpec")
    life.edit_queue(nodeResources={"gpus": 8, "cpus": 1, "memory": "1Gi"})
    life.run()


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        ({"numGPUs": 9}, "spec.numGPUs is 9"),
        ({"numGPUs": "many"}, 'spec.numGPUs is "many"'),
        ({"command": "python 'x"}, "closed quotes"),
        ({"overrides.nodeResources.memory": "x"}, "nodeResources.memory"),
    ],
)
def test_job_that_can_never_run_fails(asked: dict[str, Any], reported: str) -> None:
    life = Life(asked).begin()
    assert life.state == ("Failed", "InvalidSpec")
    assert reported in life.message
    assert {each["kind"] for each in life.api.list()} == {n.JOB_KIND, n.QUEUE_KIND}


def test_gang_without_kai_waits_for_its_installation() -> None:
    life = Life({}, {"scheduling.scheduler": "kai-scheduler"}).begin()
    assert life.requeue_after == SCHEDULER_SECONDS, "the news of its installation may come too early"
    assert life.state == ("Pending", "SchedulerNotInstalled")
    assert life.condition(n.SCHEDULER_NOT_INSTALLED)[0] == "True"
    assert life.api.list("Job", "Pod", "PodGroup") == []
    life.cluster = replace(CLUSTER, kai=True)
    life.run()
    assert life.names("PodGroup") == ["vit-0"]
    assert life.condition(n.SCHEDULER_NOT_INSTALLED)[0] == "False"
    life.fail()
    assert life.names("PodGroup") == ["vit-1"]
    life.edit(suspend=True)
    assert life.names("PodGroup") == []


def test_claim_missing_delays_the_job() -> None:
    life = Life({}, {"storage.datasets": {"enabled": True, "existingClaim": "data"}}).begin()
    assert life.state == ("Pending", "ClaimNotFound")
    assert "existingClaim data" in life.message
    assert life.requeue_after == POLL_SECONDS, "nobody reports a claim that has no job's label"
    assert life.names("Job") == []
    life.cluster = replace(CLUSTER, claims={"data": ("ReadWriteMany",)})
    life.run()


def test_rendezvous_without_endpoint_is_substituted() -> None:
    life = Life({"distributed": {"rdzvBackend": "etcd-v2"}}).run()
    assert life.condition(n.RENDEZVOUS_SUBSTITUTED) == ("True", "NoEndpoint")
    assert Life().run().condition(n.RENDEZVOUS_SUBSTITUTED)[0] == "False"


def test_children_deleted_by_hand_are_created_again() -> None:
    life = Life({"workspace": SENT}).run()
    life.api.delete("Service", "vit")
    life.api.delete("Pod", "vit-sync-0")
    life.settle()
    assert life.names("Service") == ["vit"]
    assert "vit-sync-0" in life.names("Pod")
    assert life.status["restarts"] == 0


def test_conditions_change_their_time_with_their_status_alone() -> None:
    life = Life().run()
    first = {each["type"]: each["lastTransitionTime"] for each in life.status["conditions"]}
    life.api.now += 60
    life.fail()
    later = {each["type"]: each["lastTransitionTime"] for each in life.status["conditions"]}
    assert later[n.QUEUE_FOUND] == first[n.QUEUE_FOUND]
    assert later[n.WORKERS_READY] != first[n.WORKERS_READY]
    assert all(each["observedGeneration"] == 1 for each in life.status["conditions"])


def test_progress_is_kept() -> None:
    life = Life(SMALL).run()
    plan = life.plan(life.api.list("Job", "Pod"), {"step": 5})
    assert plan.status is not None
    life.api.put_status(life.job, plan.status)
    life.reconcile()
    assert life.status["progress"] == {"step": 5}


# --- deadline and time to live


def test_deadline_counts_from_the_first_start() -> None:
    life = Life({"activeDeadlineSeconds": 100})
    life.api.now += 500
    once(life)
    once(life)
    began = life.api.now
    life.api.run_pods("Running")
    life.reconcile()
    assert life.requeue_after == 100
    life.api.now += 60
    life.edit(suspend=True)
    assert parse_time(life.status["startTime"]) == began
    assert life.requeue_after == 40
    life.wait(40)
    assert life.state == ("Failed", "DeadlineExceeded")
    assert life.condition(n.SUSPENDED) == ("False", "DeadlineExceeded")


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


def test_ttl_passed_deletes_all_but_retained_claims() -> None:
    keep = {**OWN, "storage.checkpoints": {"enabled": True, "size": "1Gi"}}
    life = Life({**SMALL, "ttlSecondsAfterFinished": 50, "persistCheckpoints": True}, keep).run()
    life.succeed()
    assert life.requeue_after == 50
    life.wait(49)
    assert life.requeue_after == 1
    life.wait(1)
    assert {each["kind"] for each in life.api.list()} == {n.QUEUE_KIND, "PersistentVolumeClaim"}
    assert life.names("PersistentVolumeClaim") == ["vit-checkpoints"]


def test_ttl_extended_meanwhile_keeps_the_job() -> None:
    life = Life({**SMALL, "ttlSecondsAfterFinished": 50}).run()
    life.succeed()
    life.api.now += 50
    item, plan = life.job, life.plan([])
    life.api.edit(n.JOB_KIND, "vit", ttlSecondsAfterFinished=500)
    life.api.apply(item, plan)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"


# --- another size, another workspace


def test_resize_starts_an_attempt_without_a_restart() -> None:
    life = Life({"numNodes": 2, "maxRestarts": 0}).run()
    life.edit(numNodes=4)
    assert life.names("Job") == ["vit-1"]
    assert life.shown("attempt", "restarts", "nodes", "gpusPerNode") == (1, 0, 4, 4)
    assert "Resized" in life.api.events


@pytest.mark.parametrize(("command", "nodes"), [("python x.py", 1), ("torchrun --nnodes=2 x.py", 4)])
def test_resize_to_an_invalid_size_keeps_the_workers(command: str, nodes: int) -> None:
    life = Life({"numNodes": 2, "command": command}).run()
    life.edit(numNodes=nodes)
    assert (life.names("Job"), life.status["phase"]) == (["vit-0"], "Running")
    assert life.condition(n.ACCEPTED) == ("False", "InvalidSpec")
    life.edit(numNodes=2)
    assert life.condition(n.ACCEPTED)[0] == "True"


@pytest.mark.parametrize("of_queue", [{}, OWN])
def test_same_size_in_another_field_does_not_restart(of_queue: dict[str, Any]) -> None:
    life = Life({"numGPUs": 16}, of_queue).run()
    life.edit(numNodes=2)
    assert life.shown("phase", "attempt") == ("Running", 0)
    life.edit(numNodes=4)
    assert life.shown("attempt", "nodes") == (1, 4)
    life.run()
    # Left to a queue that has smaller nodes by now.
    life.api.edit(n.QUEUE_KIND, "research", **queue({**of_queue, "nodeResources.gpus": 2})["spec"])
    life.api.objects[n.JOB_KIND, "vit"]["spec"].pop("numNodes")
    life.api.touch(life.api.objects[n.JOB_KIND, "vit"])
    life.reconcile()
    assert life.shown("attempt", "nodes") == (2, 8)


def test_new_workspace_restarts_only_with_restart_on_sync() -> None:
    life = Life({"workspace": SENT}).run()
    assert "vit-sync-0" in life.names("Pod")
    life.edit(workspace=OTHER)
    assert life.shown("attempt", "workspaceDigest") == (0, OTHER["digest"])
    life.edit(workspace={**OTHER, "restartOnSync": True})
    assert life.shown("attempt", "restarts") == (1, 0)
    life.run()
    life.succeed()
    assert "vit-sync-0" not in life.names("Pod")


@pytest.mark.parametrize("url", ["", "s3://own/w/workspaces/team/a.tar.zst"])
def test_sync_while_running_annotates_the_pods(url: str) -> None:
    """With a bucket or without, and with a deleted queue: the job's spec decides."""

    def archives() -> list[Any]:
        pods = [each["metadata"]["annotations"] for each in life.api.workers()]
        return [json.loads(each[n.ANNOTATION_ARCHIVE]) for each in pods]

    life = Life({"workspace": {**SENT, "url": url}}, {"storage.workspace.bucket": "s3://own/w"})
    sent = {**SENT, **({"url": url} if url else {})}
    life.api.objects[n.JOB_KIND, "vit"]["spec"]["workspace"] = sent
    life.run()
    assert archives() == [{"digest": DIGEST, "size": SENT["sizeBytes"], "url": url}] * 2
    life.api.delete(n.QUEUE_KIND, "research")
    life.edit(workspace={**sent, "digest": OTHER["digest"], "sizeBytes": 9})
    assert archives() == [{"digest": OTHER["digest"], "size": 9, "url": url}] * 2
    assert life.shown("attempt", "workspaceDigest") == (0, OTHER["digest"])


# --- invalid edits


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_edit_does_not_end_a_started_job(wrong: dict[str, Any]) -> None:
    life = Life().run()
    sound = life.api.objects[n.JOB_KIND, "vit"]["spec"]
    life.api.edit(n.JOB_KIND, "vit", **wrong)
    life.wait(1000)
    assert (life.status["phase"], life.condition(n.ACCEPTED)) == ("Running", ("False", "InvalidSpec"))
    assert f"spec.{next(iter(wrong))}" in message(life, n.ACCEPTED)
    # The next attempt starts when the spec is valid again.
    life.fail()
    assert life.state == ("Restarting", "InvalidSpec")
    assert life.names("Job") == []
    life.api.objects[n.JOB_KIND, "vit"]["spec"] = sound
    life.api.touch(life.api.objects[n.JOB_KIND, "vit"])
    life.run()
    assert life.shown("attempt", "restarts") == (1, 1)
    assert life.condition(n.ACCEPTED)[0] == "True"


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_edit_allows_success_and_suspension(wrong: dict[str, Any]) -> None:
    well, suspended = Life().run(), Life().run()
    for life in (well, suspended):
        life.edit(**wrong)
    well.succeed()
    assert well.status["phase"] == "Succeeded"
    suspended.edit(suspend=True)
    assert (suspended.status["phase"], suspended.names("Job")) == ("Suspended", [])
    assert suspended.condition(n.ACCEPTED) == ("False", "InvalidSpec")


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_edit_before_the_first_start_fails(wrong: dict[str, Any]) -> None:
    life = Life({"suspend": True}).begin()
    life.edit(**wrong)
    assert life.state == ("Failed", "InvalidSpec")


def test_invalid_edit_of_an_attempt_in_the_status_is_late() -> None:
    life = Life()
    once(life)
    life.edit(**WRONG[0])
    assert life.status["phase"] == "Provisioning"
    assert len(life.api.workers()) == 2


def test_corrected_edit_of_a_suspended_job_is_unknown() -> None:
    life = Life().run()
    expected: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"suspend": True}, ("True", "Valid")),
        ({"maxRestarts": -1}, ("False", n.REASON_INVALID_SPEC)),
        ({"maxRestarts": 2}, ("Unknown", n.REASON_SUSPENDED)),
        ({"suspend": False}, ("True", "Valid")),
    ]
    for edit, accepted in expected:
        life.edit(**edit)
        assert life.condition(n.ACCEPTED) == accepted


def test_refusal_keeps_a_finished_status() -> None:
    life = Life(SMALL).run()
    life.succeed()
    assert reject_request(life.job, "exceeded quota", life.api.now) == ReconcilePlan()


def test_refusal_is_not_reported_of_a_suspended_job() -> None:
    life = Life().run()
    life.api.apply(life.job, reject_request(life.job, "exceeded quota", life.api.now))
    assert life.condition(n.ACCEPTED) == ("False", n.REASON_REFUSED)
    life.edit(suspend=True)
    assert life.condition(n.ACCEPTED) == ("Unknown", n.REASON_SUSPENDED)


def test_unreadable_limit_of_restarts_ends_nothing() -> None:
    life = Life({"maxRestarts": None}, {"jobDefaults.maxRestarts": 10})
    for restart in range(1, 6):
        life.run()
        if restart == 5:
            life.api.edit(n.QUEUE_KIND, "research", image=5)
        life.fail()
    assert life.shown("phase", "restarts") == ("Restarting", 5)
