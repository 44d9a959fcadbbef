"""Plans from old objects, and after a crash before a write: each Job runs once, and from one template."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from tests.unit.operator.api import Crash
from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue

pytestmark = pytest.mark.unit
OWN = {"storage.workspace": {"enabled": True, "size": "1Gi"}}


def killed_before(write: str, life: Life) -> Life:
    """Kill the controller before this write."""
    calm = deepcopy(life)
    calm.reconcile()
    life.api.crash_at = calm.api.written.index(write)
    with pytest.raises(Crash):
        life.reconcile()
    life.api.settle()
    return life


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
    life = Life({"maxRestarts": 0}, OWN).run()
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
    life = killed_before(write, Life({}, OWN))
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


def test_each_node_with_a_workspace_of_its_own() -> None:
    life = Life({}, OWN).run()
    assert life.names("Job") == ["vit-0", "vit-0-n1"]
    life.succeed(only=0)
    assert life.status["phase"] == "Running"
    life.fail()
    assert life.names("Job") == ["vit-1", "vit-1-n1"]
    life.run()
    life.succeed()
    assert life.status["phase"] == "Succeeded"
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]
