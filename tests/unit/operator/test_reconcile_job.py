"""What others do to a job's objects, what can't be made, and what is seen before Kubernetes says it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.api import Crash
from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER, DIGEST, job, queue
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue
from trainyard.operator.reconciler import plan_job

pytestmark = pytest.mark.unit
SMALL = {"numGPUs": 8}
SENT = {"digest": DIGEST, "sizeBytes": 3}


def test_children_deleted_or_changed_by_hand_are_restored() -> None:
    life = Life({"workspace": SENT}).run()
    life.api.delete("Service", "vit")
    life.api.delete("Pod", "vit-sync-0")
    life.api.settle()
    life.reconcile()
    assert life.names("Service") == ["vit"]
    assert "vit-sync-0" in life.names("Pod")
    life.api.objects["Service", "vit"]["spec"]["publishNotReadyAddresses"] = False
    life.api.objects["Service", "vit"]["metadata"]["labels"]["mine"] = "too"
    life.reconcile()
    assert life.api.objects["Service", "vit"]["spec"]["publishNotReadyAddresses"] is True
    assert life.api.objects["Service", "vit"]["metadata"]["labels"]["mine"] == "too"
    assert life.status["restarts"] == 0


def test_a_name_that_is_somebody_elses() -> None:
    life = Life()
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "vit", "namespace": "team"},
        "spec": {"a": 1},
    }
    life.api.create(theirs)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "NameTaken")
    assert life.api.objects["Service", "vit"]["spec"] == {"a": 1}
    assert life.names("Job") == []
    life.api.objects.pop(("Service", "vit"))
    life.run()


def test_each_node_with_a_workspace_of_its_own() -> None:
    life = Life({}, {"storage.workspace": {"enabled": True, "size": "1Gi"}}).run()
    assert life.names("Job") == ["vit-0", "vit-0-n1"]
    life.api.run_pods("Succeeded", exit_code=0, only=0)
    life.reconcile()
    assert life.status["phase"] == "Running"
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    assert life.names("Job") == ["vit-1", "vit-1-n1"]
    life.run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        ({"numGPUs": 9}, "spec.numGPUs is 9"),
        ({"numGPUs": "many"}, 'spec.numGPUs is "many"'),
        ({"command": "python 'x"}, "closed quotes"),
        ({"overrides.nodeResources.memory": "x"}, "nodeResources.memory"),
    ],
)
def test_what_can_never_run_fails_and_makes_nothing(asked: dict[str, Any], reported: str) -> None:
    life = Life(asked)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "InvalidSpec")
    assert reported in life.status["message"]
    assert {each["kind"] for each in life.api.list()} == {n.JOB_KIND, n.QUEUE_KIND}


def test_a_queue_that_is_wrong_is_waited_for() -> None:
    life = Life({}, {"nodeResources.memory": "x"})
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Pending", "QueueInvalid")


def test_changed_queue_keeps_a_running_attempt() -> None:
    life = Life().run()
    life.api.edit(n.QUEUE_KIND, "research", nodeResources={"gpus": 0, "cpus": 1, "memory": "1Gi"})
    life.reconcile()
    assert life.status["phase"] == "Running"
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Restarting", "InvalidSpec")
    life.api.edit(n.QUEUE_KIND, "research", nodeResources={"gpus": 8, "cpus": 1, "memory": "1Gi"})
    life.run()


def test_plan_of_a_deleting_job_is_empty() -> None:
    item = job()
    item["metadata"] |= {"namespace": "team", "uid": "u", "deletionTimestamp": "2027-01-01T00:00:00Z"}
    decision = plan_job(item, queue(), [], CLUSTER, 0.0)
    assert decision == type(decision)()


def test_conditions_change_their_time_with_their_status_alone() -> None:
    life = Life().run()
    first = {each["type"]: each["lastTransitionTime"] for each in life.status["conditions"]}
    life.api.now += 60
    life.api.run_pods("Failed", exit_code=1)
    life.reconcile()
    later = {each["type"]: each["lastTransitionTime"] for each in life.status["conditions"]}
    assert later[n.QUEUE_FOUND] == first[n.QUEUE_FOUND]
    assert later[n.WORKERS_READY] != first[n.WORKERS_READY]
    assert all(each["observedGeneration"] == 1 for each in life.status["conditions"])


def test_progress_is_kept() -> None:
    life = Life(SMALL).run()
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    decision = plan_job(item, life.queue, life.api.list("Job", "Pod"), CLUSTER, life.api.now, {"step": 5})
    assert decision.status is not None
    assert decision.status["progress"] == {"step": 5}
    life.api.put_status(item, decision.status)
    life.reconcile()
    assert life.status["progress"] == {"step": 5}


def test_a_lost_worker_is_noticed_before_its_job_is_failed() -> None:
    life = Life().run()
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    children = life.api.list("Service", "Job", "Pod")
    lost = next(each for each in children if each["kind"] == "Pod")
    lost["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    decision = plan_job(item, life.queue, children, CLUSTER, life.api.now)
    assert decision.status is not None
    assert (decision.status["phase"], decision.status["attempt"]) == ("Restarting", 1)
    assert f"worker {lost['metadata']['name']} on node n" in decision.status["message"]
    # Its Job is removed by the next decision: by then the end is on record.
    assert decision.deletions == ()


def test_stale_plan_keeps_jobs_resumed_since() -> None:
    life = Life({"numNodes": 2})
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    first = plan_job(item, life.queue, [], CLUSTER, life.api.now)
    for each in first.creations:
        life.api.create(each)
    # A crash before the status; somebody changes the size, and changes it back.
    life.api.edit(n.JOB_KIND, "vit", numNodes=4)
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    stale = plan_job(item, life.queue, life.api.list("Service", "Job"), CLUSTER, life.api.now)
    assert [each.name for each in stale.deletions] == ["vit-0"]
    life.api.edit(n.JOB_KIND, "vit", numNodes=2)
    life.run()
    life.api.apply(item, stale)
    life.api.settle()
    life.reconcile()
    assert (life.status["attempt"], life.status["phase"]) == (0, "Running")


def test_time_to_live_goes_by_what_was_read() -> None:
    life = Life({**SMALL, "ttlSecondsAfterFinished": 50}).run()
    life.api.run_pods("Succeeded", exit_code=0)
    life.reconcile()
    life.api.now += 50
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    decision = plan_job(item, life.queue, [], CLUSTER, life.api.now)
    life.api.edit(n.JOB_KIND, "vit", ttlSecondsAfterFinished=500)
    life.api.apply(item, decision)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"


def test_deleting_batch_job_ends_its_attempt() -> None:
    life = Life().run()
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    children = life.api.list("Service", "Job", "Pod")
    next(each for each in children if each["kind"] == "Job")["metadata"]["deletionTimestamp"] = "now"
    decision = plan_job(item, life.queue, children, CLUSTER, life.api.now)
    assert decision.status is not None
    assert decision.status["message"] == "Job vit-0 was deleted; restart 1 of 3"


def test_batch_job_with_a_failed_worker_is_kept_for_logs() -> None:
    life = Life({"maxRestarts": 0}, {"storage.workspace": {"enabled": True, "size": "1Gi"}}).run()
    item, children = life.api.get(n.JOB_KIND, "vit"), life.api.list("Job", "Pod")
    assert item is not None
    failed = next(each for each in children if each["kind"] == "Pod")
    failed["status"] = {"phase": "Failed"}
    decision = plan_job(item, life.queue, children, CLUSTER, life.api.now)
    assert decision.status is not None
    assert decision.status["phase"] == "Failed"
    item["status"] = decision.status
    after = plan_job(item, life.queue, children, CLUSTER, life.api.now)
    kept = failed["metadata"]["ownerReferences"][0]["name"]
    assert [each.name for each in after.deletions] == [name for name in ("vit-0", "vit-0-n1") if name != kept]


def killed_before(what: str, life: Life) -> Life:
    """The controller ends before this write."""
    calm = deepcopy(life)
    calm.reconcile()
    life.api.crash_at = calm.api.written.index(what)
    with pytest.raises(Crash):
        life.reconcile()
    life.api.settle()
    return life


@pytest.mark.parametrize("write", ["create Job vit-0-n1", "put status"])
def test_all_jobs_of_an_attempt_are_made_of_one_template(write: str) -> None:
    life = killed_before(write, Life({}, {"storage.workspace": {"enabled": True, "size": "1Gi"}}))
    life.api.edit(n.QUEUE_KIND, "research", image="team/pytorch:2")
    life.run()
    images = {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in life.api.list("Job")}
    assert (life.names("Job"), images) == (["vit-0", "vit-0-n1"], {"team/pytorch:2"})
    assert (life.status["attempt"], life.status["restarts"]) == (0, 0)
    # Each ran once, and none before all were there.
    assert [name for _, name in life.api.ran] == ["vit-0", "vit-0-n1"]


def test_one_that_is_on_record_is_what_it_was() -> None:
    life = Life().run()
    before = life.api.list("Job")
    life.api.edit(n.QUEUE_KIND, "research", image="team/pytorch:2")
    life.reconcile()
    assert life.api.list("Job") == before
    # One that was made by a controller which marked none, and is on record.
    del life.api.objects["Job", "vit-0"]["metadata"]["annotations"][n.ANNOTATION_MADE_OF]
    assert life.reconcile() == 0
    assert life.status["phase"] == "Running"


def test_stale_plan_deletes_no_resumed_batch_job() -> None:
    life = Life()
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    life.run()
    life.api.edit(n.QUEUE_KIND, "research", image="team/pytorch:2")
    children = life.api.list("Service", "Job", "Pod")
    decision = plan_job(item, life.api.get(n.QUEUE_KIND, "research"), children, CLUSTER, life.api.now)
    assert decision.deletions == ()
    assert not life.api.apply(item, decision)
    life.reconcile()
    assert (life.status["phase"], life.status["restarts"]) == ("Running", 0)


def test_gang_of_another_kai_queue_is_created_again() -> None:
    queues = {each: KaiQueue() for each in ("a", "b")}
    gang = {"scheduling.scheduler": "kai-scheduler", "kaiQueue": "a"}
    life = Life({}, gang, cluster=replace(CLUSTER, kai=True, kai_queues=queues))
    killed_before("put status", life)
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="b")
    life.run()
    (group,) = life.api.list("PodGroup")
    (job,) = life.api.list("Job")
    assert group["spec"]["queue"] == "b"
    assert job["spec"]["template"]["metadata"]["labels"][n.LABEL_KAI_QUEUE] == "b"
    assert [name for _, name in life.api.ran] == ["vit-0"]
    # While it runs, it stays.
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="a")
    life.reconcile()
    assert life.api.list("PodGroup") == [group]
