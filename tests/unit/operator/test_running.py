"""The attempt of a running job: success, suspension by another client, crashes of the controller, old objects."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.api import Crash
from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue
from trainyard.operator.plan import POLL_SECONDS

OF_EACH_NODE = {"storage.workspace": {"enabled": True, "size": "1Gi"}}
# What would end an attempt that runs.
ENDS: dict[str, dict[str, Any]] = {
    "suspended": {"suspend": True},
    "resized": {"elastic": {"minNodes": 2, "maxNodes": 4}},
    "synced": {"workspace": {"digest": "sha256:" + "b" * 64, "sizeBytes": 3, "restartOnSync": True}},
    "late": {"activeDeadlineSeconds": 50},
}


def ending(least: int = 1, of_queue: dict[str, Any] | None = None, *, stuck: bool = True) -> Life:
    """Return an elastic job that has succeeded, with other workers on nodes that do not answer."""
    life = Life({"numGPUs": 32, "elastic": {"minNodes": least, "maxNodes": 4}}, of_queue).run()
    for each in life.api.workers():
        each["metadata"]["stuck"] = stuck
    for _ in range(least):
        life.api.run_pods("Succeeded", exit_code=0, only=0)
    return life


def free(life: Life) -> None:
    for each in life.api.objects.values():
        each["metadata"].pop("stuck", None)
    life.api.settle()


def killed_before(write: str, life: Life) -> Life:
    """Kill the controller before this write."""
    calm = deepcopy(life)
    calm.reconcile()
    life.api.crash_at = calm.api.written.index(write)
    with pytest.raises(Crash):
        life.reconcile()
    life.api.settle()
    return life


def test_success_is_reported_when_no_worker_is_left() -> None:
    life = ending()
    life.reconcile()
    assert life.status["phase"] == "Running"
    free(life)
    life.reconcile()
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    assert life.status["workers"] == {"active": 0, "ready": 0, "succeeded": 1, "failed": 0}
    assert life.message == "1 of 4 workers succeeded, and minNodes is 1"


@pytest.mark.parametrize("how", ENDS)
def test_succeeded_attempt_is_not_ended_by_an_edit(how: str) -> None:
    life = ending()
    life.api.edit(n.JOB_KIND, "vit", **ENDS[how])
    life.wait(60)
    free(life)
    life.reconcile()
    life.edit(suspend=False)
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    assert life.names("Job") == ["vit-0"]
    assert len(life.api.ran) == 1


@pytest.mark.parametrize("of_queue", [{}, OF_EACH_NODE])
def test_success_needs_no_report_of_the_job_controller(of_queue: dict[str, Any]) -> None:
    life = Life({"numGPUs": 16}, of_queue).run()
    for each in life.api.workers():
        each["status"] = {"phase": "Succeeded"}
        life.api.touch(each)
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    plan = life.plan(life.api.list("Job", "Pod"))
    assert plan.status is not None
    assert plan.status["phase"] == "Succeeded"
    life.api.apply(life.job, plan)
    life.reconcile()
    assert len(life.names("Job")) == len(life.api.ran)  # kept for their pods' logs


def test_success_of_a_suspended_worker_does_not_count() -> None:
    life = Life({"numGPUs": 8}).run()
    worker = life.api.workers()[0]
    worker["metadata"]["stuck"] = True
    life.edit(suspend=True)
    worker["status"] = {"phase": "Succeeded"}
    life.reconcile()
    assert life.status["phase"] == "Suspended"
    free(life)
    life.reconcile()
    assert life.condition(n.SUSPENDED)[0] == "True"


def test_succeeded_job_that_is_deleted_has_succeeded() -> None:
    life = ending()
    life.api.delete("Job", "vit-0", foreground=True)
    life.reconcile()
    assert life.status["phase"] == "Succeeded"


def test_job_that_succeeds_before_its_deletion_is_kept() -> None:
    """It succeeds between the read and the deletion of its Job."""
    life = Life({"numGPUs": 8}).run()
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.api.crash_after(1)  # the status is put, and the Job is there still
    with pytest.raises(Exception, match="delete Job vit-0"):
        life.reconcile()
    item, before = life.job, life.plan(life.api.list("Job", "Pod"))
    assert [each.name for each in before.deletions] == ["vit-0"]
    life.api.run_pods("Succeeded", exit_code=0)
    life.api.apply(item, before)
    life.settle()
    assert life.status["phase"] == "Succeeded"


@pytest.mark.parametrize("least", [1, 2, 4])
def test_elastic_job_per_node_succeeds_with_its_minimum(least: int) -> None:
    life = Life({"numGPUs": 32, "elastic": {"minNodes": least, "maxNodes": 4}}, OF_EACH_NODE)
    life.api.machines = least
    life.run()
    assert len(life.names("Job")) == 4
    for each in range(least):
        assert (life.status["phase"], life.status["workers"]["succeeded"]) == ("Running", each)
        life.succeed(only=0)
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    # Those that never had a node are gone, and begin nothing when one comes.
    assert len(life.names("Job")) == least
    life.api.bring(None)
    assert not life.api.run_pods("Running")


def test_job_per_node_waits_for_workers_without_a_node() -> None:
    life = Life({}, OF_EACH_NODE)
    for machines, phase in ((1, "Provisioning"), (2, "Succeeded")):
        life.api.bring(machines)
        life.reconcile()
        life.api.run_pods("Running")
        life.succeed()
        assert life.status["phase"] == phase


def test_elastic_job_per_node_waits_for_running_workers() -> None:
    """One of them may write the last checkpoint."""
    life = Life({"numGPUs": 16, "elastic": {"minNodes": 1, "maxNodes": 2}}, OF_EACH_NODE).run()
    life.succeed(only=1)
    assert life.status["phase"] == "Running"
    assert len(life.api.workers()) == 1
    life.succeed()
    assert life.shown("phase", "attempt") == ("Succeeded", 0)
    assert life.status["workers"]["succeeded"] == 2


@pytest.mark.parametrize("seen", ["alive", "over", "gone"])
def test_success_of_a_deleted_worker_does_not_count(seen: str) -> None:
    """A preStop hook may make a command save and exit with 0 before SIGTERM. The Job controller counts a success."""
    life = Life({"numGPUs": 8}).run()
    (worker,) = life.api.workers()
    worker["metadata"] |= {"stuck": True, "deletionGracePeriodSeconds": 30}
    worker["metadata"]["deletionTimestamp"] = worker["metadata"]["creationTimestamp"]
    life.api.prompt = False
    if seen != "over":
        life.api.crash_after(1)  # the loss is reported, and the Job is there still
        with pytest.raises(Exception, match="delete Job vit-0"):
            life.reconcile()
    worker["status"] = {"phase": "Succeeded"}
    reported = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
    life.api.objects["Job", "vit-0"]["status"]["conditions"] = reported
    if seen == "gone":
        del life.api.objects["Pod", worker["metadata"]["name"]]
    life.reconcile()
    free(life)
    life.reconcile()
    assert life.shown("phase", "attempt", "restarts") == ("Provisioning", 1, 1)


def test_success_that_a_suspended_job_reports_does_not_count() -> None:
    """A preStop hook as above. The pod is gone, and the Job that reports the success is still being deleted."""
    life = Life({"numGPUs": 8}).run()
    (worker,) = life.names("Pod")
    life.api.crash_after(1)  # the status names the suspension
    with pytest.raises(Exception, match="delete Job vit-0"):
        life.edit(suspend=True)
    reported = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
    life.api.objects["Job", "vit-0"]["status"]["conditions"] = reported
    del life.api.objects["Pod", worker]
    life.reconcile()
    assert life.status["phase"] == n.PHASE_SUSPENDED


def test_elastic_job_per_node_resumes_no_job_after_success() -> None:
    """The controller is killed between two resumes, and the first worker succeeds meanwhile."""
    life = Life({"numGPUs": 32, "elastic": {"minNodes": 1, "maxNodes": 4}}, OF_EACH_NODE)
    life.api.prompt = False
    killed_before("apply Job vit-0-n1", life)
    life.succeed()
    life.api.prompt = True
    life.settle()
    assert life.status["phase"] == "Succeeded"
    assert [name for _, name in life.api.ran] == ["vit-0"]


@pytest.mark.parametrize("of_queue", [OF_EACH_NODE, {}])
def test_failed_worker_ends_an_attempt_with_enough_successes(of_queue: dict[str, Any]) -> None:
    life = Life({"numGPUs": 24, "elastic": {"minNodes": 2, "maxNodes": 3}}, of_queue).run()
    for name, phase in zip(life.names("Pod"), ("Failed", "Succeeded", "Succeeded"), strict=True):
        life.api.objects["Pod", name]["status"]["phase"] = phase
    life.reconcile()
    assert life.shown("attempt", "restarts") == (1, 1)


# --- old objects, and crashes before a write


def test_lost_worker_is_noticed_before_its_job_fails() -> None:
    life = Life().run()
    children = life.api.list("Service", "Job", "Pod")
    lost = next(each for each in children if each["kind"] == "Pod")
    lost["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    plan = life.plan(children)
    assert plan.status is not None
    assert (plan.status["phase"], plan.status["attempt"]) == ("Restarting", 1)
    assert f"worker {lost['metadata']['name']} on node n" in plan.status["message"]
    assert plan.deletions == ()  # the next plan deletes its Job, after the status has the end


def test_deleting_batch_job_ends_its_attempt() -> None:
    life = Life().run()
    children = life.api.list("Service", "Job", "Pod")
    next(each for each in children if each["kind"] == "Job")["metadata"]["deletionTimestamp"] = "now"
    plan = life.plan(children)
    assert plan.status is not None
    assert plan.status["message"] == "Job vit-0 was deleted; restart 1 of 3"


def test_batch_job_with_a_failed_worker_is_kept_for_logs() -> None:
    life = Life({"maxRestarts": 0}, OF_EACH_NODE).run()
    children = life.api.list("Job", "Pod")
    failed = next(each for each in children if each["kind"] == "Pod")
    failed["status"] = {"phase": "Failed"}
    plan = life.plan(children)
    assert plan.status is not None
    assert plan.status["phase"] == "Failed"
    life.api.put_status(life.job, plan.status)
    kept = failed["metadata"]["ownerReferences"][0]["name"]
    deleted = [each.name for each in life.plan(children).deletions]
    assert deleted == [name for name in ("vit-0", "vit-0-n1") if name != kept]


def test_stale_plan_keeps_jobs_resumed_since() -> None:
    life = Life({"numNodes": 2})
    for each in life.plan([]).creations:
        life.api.create(each)
    # After a crash before the status, a user changes the size, and changes it back.
    life.api.edit(n.JOB_KIND, "vit", numNodes=4)
    item, stale = life.job, life.plan(life.api.list("Service", "Job"))
    assert [each.name for each in stale.deletions] == ["vit-0"]
    life.api.edit(n.JOB_KIND, "vit", numNodes=2)
    life.run()
    life.api.apply(item, stale)
    life.settle()
    assert life.shown("attempt", "phase") == (0, "Running")


def test_stale_plan_deletes_no_resumed_batch_job() -> None:
    life = Life()
    item = life.job
    life.run()
    life.api.edit(n.QUEUE_KIND, "research", image="team/pytorch:2")
    old = deepcopy(life)
    old.api.objects[n.JOB_KIND, "vit"] = item
    plan = old.plan(life.api.list("Service", "Job", "Pod"))
    assert plan.deletions == ()
    assert not life.api.apply(item, plan)
    life.reconcile()
    assert life.shown("phase", "restarts") == ("Running", 0)


@pytest.mark.parametrize("write", ["create Job vit-0-n1", "put status"])
def test_all_jobs_of_an_attempt_are_made_of_one_template(write: str) -> None:
    life = killed_before(write, Life({}, OF_EACH_NODE))
    life.api.edit(n.QUEUE_KIND, "research", image="team/pytorch:2")
    life.run()
    images = {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in life.api.list("Job")}
    assert (life.names("Job"), images) == (["vit-0", "vit-0-n1"], {"team/pytorch:2"})
    assert life.shown("attempt", "restarts") == (0, 0)
    # Each ran once, and none before all existed.
    assert [name for _, name in life.api.ran] == ["vit-0", "vit-0-n1"]


def test_gang_of_another_kai_queue_is_created_again() -> None:
    queues = {each: KaiQueue() for each in ("a", "b")}
    gang = {"scheduling.scheduler": "kai-scheduler", "kaiQueue": "a"}
    life = Life({}, gang, cluster=replace(CLUSTER, kai=True, kai_queues=queues))
    killed_before("put status", life)
    life.api.edit(n.QUEUE_KIND, "research", kaiQueue="b")
    life.run()
    (group,), (job,) = life.api.list("PodGroup"), life.api.list("Job")
    assert group["spec"]["queue"] == "b"
    assert job["spec"]["template"]["metadata"]["labels"][n.LABEL_KAI_QUEUE] == "b"
    assert [name for _, name in life.api.ran] == ["vit-0"]
    # While it runs, it stays.
    life.edit_queue(kaiQueue="a")
    assert life.api.list("PodGroup") == [group]


# --- suspension by another client


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
    assert life.condition(n.SUSPENDED) == ("False", "NotRequested")
    life.run()
    assert (life.names("Job"), *life.shown("attempt", "restarts")) == (["vit-0"], 0, 0)


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
