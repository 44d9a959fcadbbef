"""A job whose queue names a pool, in trouble: what can never be, what is lost, what others have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.manifests import mark, stamp
from tests.unit.operator.life import ELASTIC, Pooled
from tests.unit.operator.made import CLUSTER, DIGEST
from tests.unit.operator.pool import GPU, POOL, PoolApi
from trainyard.operator import names as n
from trainyard.operator.nodes import DEADLINE_SECONDS, NODE_START_SECONDS, RETRY_SECONDS

pytestmark = pytest.mark.unit


def test_impossible_job_is_reported_without_placeholders() -> None:
    life = Pooled({"numGPUs": 40}, limit=4)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert (
        "5 nodes are needed, but the limit of NodePool p5 is 32 nvidia.com/gpu, which is 4 nodes"
        in life.status["message"]
    )
    assert life.api.placeholders() == []
    life.api.limit = 5
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 5)

    life = Pooled()
    life.reconcile()
    life.api.exists = False
    life.reconcile()
    assert life.state == ("Pending", n.REASON_POOL_NOT_FOUND)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("False", n.REASON_POOL_NOT_FOUND)
    assert life.api.placeholders() == []

    life = Pooled()
    life.api.taints = [
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "x", "effect": "PreferNoSchedule"},
    ]
    life.reconcile()
    assert "taints that the workers do not tolerate: team=a:NoSchedule. Add" in life.status["message"]

    life = Pooled(cluster=replace(CLUSTER, placeholders=False))
    life.reconcile()
    assert life.state == ("Pending", n.REASON_PRIORITY_CLASS_NOT_FOUND)
    assert "trainyard-placeholder" in life.status["message"]
    assert life.api.placeholders() == []


def test_type_too_small_is_reported_as_by_karpenter() -> None:
    life = Pooled()
    life.reconcile()
    said = "Failed to schedule pod, no instance type has the required offering, requirements=a, resources=b"
    life.api.warn("Pod", "vit-hold-0", said)
    life.api.warn("Pod", "else-hold-0", "no instance type has enough resources, requirements=a, resources=b")
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    life.api.warn(
        "Pod", "vit-hold-1", "Failed to schedule pod, no instance type has enough resources, requirements=a"
    )
    life.reconcile()
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert (
        "pool p5 has no instance type that can run a worker: no instance type has enough"
        in life.status["message"]
    )
    assert life.api.placeholders() == []
    life.reconcile()
    life.later(life.requeue_after or 0)
    life.reconcile()  # what was said of the try before is not believed for ever
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert life.api.placeholders() == ["vit-hold-0", "vit-hold-1"]


def test_verdict_counts_unless_the_job_has_a_node() -> None:
    verdict = "Failed to schedule pod, no instance type met all requirements, requirements=gpu-name In [h100]"
    for is_held, reason in ((False, n.REASON_CAPACITY_IMPOSSIBLE), (True, n.REASON_WAITING_FOR_NODES)):
        life = Pooled({"numGPUs": 16}, {"nodeResources.gpuType": "h100"})
        life.api.add("idle")
        life.reconcile()
        assert "1 node: free, but no placeholder of the job runs there" in life.status["message"]
        if is_held:
            life.api.schedule()
        life.api.warn("Pod", "vit-hold-1", verdict)
        life.reconcile()
        assert life.state == ("Pending", reason)
        assert ("gpu-name In [h100]" in life.status["message"]) != is_held


def test_worker_without_a_node_restarts_after_the_start_time() -> None:
    life = Pooled()
    life.turn(2)
    life.api.left = 0
    life.api.lose(sorted(life.api.nodes)[0])
    life.api.turn()
    life.reconcile()
    waiting = [each for each in life.api.workers() if not each["spec"]["nodeName"]]
    assert (life.status["phase"], len(waiting)) == ("Provisioning", 1)
    life.later(899)
    life.reconcile()
    assert life.status["phase"] == "Provisioning"
    assert (life.requeue_after or 99) <= 1
    life.later(1)
    life.reconcile()
    assert life.status["restarts"] == 1
    assert "WorkerFailed" in life.api.events
    life.turn()
    assert life.state == ("Restarting", n.REASON_WAITING_FOR_NODES)
    assert life.names("Job") == []


class Quota(PoolApi):
    """The namespace may have as many GPUs as the job asks for, and placeholders count, too: no worker gets a pod."""

    def _work(self, job: dict[str, Any]) -> None:
        if job["spec"]["suspend"] or not self.placeholders():
            super()._work(job)
        else:
            job.setdefault("status", {}).setdefault("startTime", stamp(self.now))


def test_placeholders_in_a_full_quota_are_deleted() -> None:
    life = Pooled(api=Quota())
    life.turn(3)
    assert life.status["phase"] == "Provisioning"
    assert (life.api.workers(), life.api.placeholders()) == ([], ["vit-hold-0", "vit-hold-1"])
    life.later(19)
    life.reconcile()
    assert life.api.placeholders() == ["vit-hold-0", "vit-hold-1"]
    assert (life.requeue_after or 99) <= 1
    life.later(1)
    life.reconcile()
    assert life.api.placeholders() == []
    assert len(life.api.workers()) == 2


def test_failed_placeholder_holds_nothing() -> None:
    life = Pooled()
    for name in ("a", "b"):
        life.api.add(name)
    life.reconcile()
    life.api.schedule()
    life.api.objects["Pod", "vit-hold-0"]["status"]["phase"] = "Failed"
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    life.turn()
    assert life.state == ("Provisioning", n.REASON_STARTING)


def test_worker_of_another_scheduler_may_wait() -> None:
    life = Pooled({}, {"scheduling.scheduler": "kai-scheduler"}, cluster=replace(CLUSTER, kai=True))
    life.turn(2)
    life.later(5000)
    life.reconcile()
    assert (life.status["phase"], life.status["restarts"]) == ("Provisioning", 0)


def test_elastic_job_continues_without_a_lost_node() -> None:
    life = Pooled(ELASTIC)
    life.turn(2)
    life.api.left = 0
    life.api.lose(sorted(life.api.nodes)[0])
    life.api.turn()
    life.reconcile()
    life.later(2000)
    life.reconcile()
    assert (life.status["phase"], life.status["restarts"]) == ("Provisioning", 0)


def test_next_attempt_waits_for_earlier_workers() -> None:
    life = Pooled()
    life.turn(3)
    life.api.turn()
    life.run()
    stuck, other = sorted(each["metadata"]["name"] for each in life.api.workers())
    life.api.objects["Pod", stuck]["metadata"]["stuck"] = True
    node = life.api.objects["Pod", stuck]["spec"]["nodeName"]
    life.api.ready(node, False)
    life.api.delete("Pod", stuck)
    life.api.settle()
    life.turn()
    assert life.state == ("Restarting", n.REASON_STOPPING)
    assert ("Pod", other) not in life.api.objects
    assert len(life.api.placeholders()) == 1  # one for the node that is free, none beside the lost worker
    assert "capacity" not in life.status
    life.api.objects["Pod", stuck]["metadata"]["stuck"] = False
    life.api.lose(node)
    life.turn(3)
    assert (life.status["phase"], life.status["attempt"], life.status["restarts"]) == ("Provisioning", 1, 1)
    life.api.turn()
    life.run()
    assert (life.api.most_held, life.api.placeholders()) == (2, [])


def test_job_deadline_passes_in_the_wait_for_nodes() -> None:
    life = Pooled({"numGPUs": 16, "activeDeadlineSeconds": DEADLINE_SECONDS + 100})
    life.turn(3)
    life.api.turn()
    life.run()
    life.api.left = 0
    life.api.lose(sorted(life.api.nodes)[0])
    life.turn()
    life.later(DEADLINE_SECONDS)
    life.reconcile()
    assert life.state == ("Restarting", n.REASON_INSUFFICIENT_CAPACITY)
    assert life.requeue_after == 100
    life.later(100)
    life.reconcile()
    assert life.state == ("Failed", n.REASON_DEADLINE_EXCEEDED)
    assert "capacity" not in life.status


def test_finished_worker_being_deleted_takes_no_node() -> None:
    life = Pooled()
    life.turn(3)
    life.api.turn()
    life.run()
    failed = sorted(each["metadata"]["name"] for each in life.api.workers())[0]
    life.api.objects["Pod", failed]["metadata"]["stuck"] = True
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.turn()
    assert life.state == ("Restarting", n.REASON_STOPPING)
    assert life.api.placeholders() == ["vit-hold-0", "vit-hold-1"]


def test_node_that_never_became_usable_is_released() -> None:
    life = Pooled()
    life.turn(1)
    lame = next(iter(life.api.claims))
    life.api.claims[lame]["left"] = 9999
    life.api.turn()
    life.later(899)
    life.reconcile()
    assert lame in life.api.claims
    life.later(1)
    life.api.claims[lame]["status"] = {"nodeName": "lame"}
    life.api.add("lame", metadata__labels={"karpenter.sh/nodepool": POOL}, spec__unschedulable=True)
    theirs = {"nodeName": "lame", "containers": []}
    life.api.others["theirs"] = {
        "metadata": {"name": "theirs"},
        "spec": theirs,
        "status": {"phase": "Running"},
    }
    life.api.unheard.add("theirs")
    life.reconcile()
    assert lame in life.api.claims  # as long as somebody else is there
    life.api.others.clear()
    life.reconcile()
    assert lame not in life.api.claims
    life.turn(3)
    assert life.status["phase"] == "Provisioning"


def test_node_without_devices_for_a_moment_stays() -> None:
    life = Pooled()
    life.api.left = 1
    life.turn(3)
    (claim,) = life.api.claims
    life.later(1000)
    (node,) = life.api.nodes.values()
    node["status"]["allocatable"] = {"cpu": "97", "memory": "1Ti"}  # the device plugin is restarted
    life.reconcile()
    assert f"0 of 8 {GPU}" in life.status["message"]
    assert list(life.api.claims) == [claim]


def test_nodes_starting_are_released_unless_others_wait() -> None:
    for others in (False, True):
        life = Pooled()
        life.turn(1)
        for claim in life.api.claims.values():
            claim["left"] = 9999
        if others:
            spec = {"containers": [], "tolerations": [{"operator": "Exists"}]}
            meta = {"name": "theirs", "namespace": "default"}
            life.api.unheard.add("theirs")  # a moment ago
            life.api.others["theirs"] = {"metadata": meta, "spec": {**spec, "nodeName": ""}, "status": {}}
        life.later(DEADLINE_SECONDS)
        for claim in life.api.claims.values():  # they came a moment ago
            claim["metadata"]["creationTimestamp"] = life.status["capacity"]["since"]
        life.reconcile()
        assert life.state == ("Pending", n.REASON_INSUFFICIENT_CAPACITY)
        assert len(life.api.claims) == (2 if others else 0)


@pytest.mark.parametrize("owners", [[], ["theirs"], ["vit", "theirs"]])
def test_node_claims_of_others_stay(owners: list[str]) -> None:
    """The job asks for GPUs on a pool that has none, so that each node there seems to lack its devices."""
    life = Pooled({"numGPUs": 1, "overrides": {"nodeResources": {"gpus": 1}}})
    life.turn(1)
    required = [{"key": mark("team", f"{n.RUN_PREFIX}{each}"), "operator": "DoesNotExist"} for each in owners]
    for claim in life.api.claims.values():
        claim |= {"left": 9999, "spec": {"requirements": required}}
    theirs = dict(life.api.claims)
    assert theirs
    life.later(NODE_START_SECONDS + 1)
    life.reconcile()
    life.later(DEADLINE_SECONDS)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_INSUFFICIENT_CAPACITY)
    assert life.api.claims == theirs


def test_events_alone_delete_no_node_claim() -> None:
    life = Pooled()
    life.turn(1)
    own = dict(life.api.claims)
    for claim in own.values():
        claim["left"] = 9999
    life.api.warn("Pod", "vit-hold-0", "no instance type has enough resources, requirements=x")
    life.reconcile()
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert life.api.claims == own
    assert own


def test_workspace_can_be_sent_in_the_wait_for_nodes() -> None:
    life = Pooled({"workspace": {"digest": DIGEST, "sizeBytes": 3}})
    life.reconcile()
    assert "vit-sync-0" in life.names("Pod")
    assert life.names("Service") == ["vit"]


def test_clock_set_back_prolongs_nothing() -> None:
    life = Pooled()
    life.api.left = 0
    life.turn(1)
    life.later(-5000)
    life.reconcile()
    life.later(DEADLINE_SECONDS)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_INSUFFICIENT_CAPACITY)
    life.later(-5000)
    life.reconcile()
    assert (life.requeue_after or 0) <= 1.2 * RETRY_SECONDS


def test_placeholder_name_taken_is_reported() -> None:
    life = Pooled()
    theirs = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vit-hold-0", "labels": {}}, "spec": {}}
    life.api.create(theirs)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_NAME_TAKEN)
    assert "Pod vit-hold-0 does not belong to this job" in life.status["message"]
    life.api.objects.pop(("Pod", "vit-hold-0"))
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
