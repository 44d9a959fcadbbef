"""A job whose queue names a pool: it begins with exactly the nodes that there are, or says why it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.life import ELASTIC, TWO, Pooled
from tests.unit.operator.made import CLUSTER
from tests.unit.operator.pool import GPU, POOL
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.nodes import DEADLINE_SECONDS, HOLD_SECONDS, RETRY_SECONDS

pytestmark = pytest.mark.unit


def test_nodes_are_launched_before_the_workers() -> None:
    life = Pooled()
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("False", n.REASON_WAITING_FOR_NODES)
    assert life.api.placeholders() == ["vit-hold-0", "vit-hold-1"]
    assert life.status["message"] == "0 of 2 nodes: 2 placeholders wait for a node"
    assert life.names("Job") == []
    assert 0 < (life.requeue_after or 0) <= 2
    life.turn()
    assert life.status["message"].startswith("0 of 2 nodes: 2 NodeClaims starting")
    life.turn(2)
    assert life.state == ("Provisioning", n.REASON_STARTING)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("True", n.REASON_COUNTED)
    assert (life.status["nodes"], life.api.bought) == (2, 2)
    assert "capacity" not in life.status
    life.api.turn()
    assert all(each["spec"]["nodeName"] for each in life.api.workers())
    life.run()
    assert life.api.placeholders() == []
    assert (life.api.bought, life.api.most_held) == (2, 2)


def test_idle_nodes_count_when_they_are_held() -> None:
    life = Pooled()
    for name in ("a", "b"):
        life.api.add(name)
    life.reconcile()
    assert life.status["phase"] == "Pending"
    assert "2 nodes: free, but no placeholder of the job runs there" in life.status["message"]
    life.turn()
    assert life.state == ("Provisioning", n.REASON_STARTING)
    assert life.api.bought == 0


def test_pool_with_several_types_and_zones_names_them() -> None:
    life = Pooled()
    life.api.offers |= {
        names.LABEL_ZONE: "us-west-2a,us-west-2b",
        names.LABEL_INSTANCE_TYPE: "p5.48xlarge,p5e.48xlarge",
    }
    life.api.left = 0
    life.turn(2)
    assert "for p5.48xlarge, p5e.48xlarge in us-west-2a, us-west-2b (" in life.status["message"]
    life.api.left = 9
    life.turn(2)
    assert life.status["phase"] == "Provisioning"


def test_terminated_instances_are_reported_with_the_key() -> None:
    life = Pooled()
    life.turn(1)
    assert "NodeClaims starting" in life.status["message"]
    for claim in list(life.api.claims):
        life.api.warn("NodeClaim", claim, "Instance is terminating", "InstanceTerminating")
        life.api.warn("NodeClaim", claim, "Interruption triggered termination", "TerminatingOnInterruption")
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    (message,) = [
        each["message"] for each in life.status["conditions"] if each["type"] == n.CAPACITY_AVAILABLE
    ]
    assert message.startswith("0 of 2 nodes: EC2 terminated 2 instances of pool p5")
    assert "KMS key" in message
    # It is a message: nothing is deleted because of it.
    assert len(life.api.placeholders()) == 2


@pytest.mark.parametrize(("changes", "why"), [
    ({"status__conditions": [{"type": "Ready", "status": "Unknown"}]}, "not Ready"),
    ({"spec__unschedulable": True}, "cordoned"),
    ({"spec__taints": [{"key": "node.cilium.io/agent-not-ready", "effect": "NoExecute"}]}, "taint node.cilium"),
    ({"metadata__labels": {"karpenter.sh/nodepool": POOL}}, "not initialized"),
    ({"metadata__deletionTimestamp": "2026-11-22T10:00:00Z"}, "being deleted"),
    ({"status__allocatable": {"cpu": "96", "memory": "1Ti", GPU: "7"}}, f"7 of 8 {GPU}"),
])  # fmt: skip
def test_unusable_node_does_not_count_even_if_held(changes: dict[str, Any], why: str) -> None:
    life = Pooled()
    for name in ("a", "b"):
        life.api.add(name)
    life.reconcile()
    life.api.schedule()
    node = life.api.add("b", **changes)
    assert any(each["spec"]["nodeName"] == "b" for each in life.api.list("Pod"))
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert life.status["message"].startswith("1 of 2 nodes: 1 node: ")
    assert why in life.status["message"]
    life.api.nodes["b"] = node
    life.api.add("b")
    life.reconcile()
    assert life.status["phase"] == "Provisioning"


def test_capacity_below_minimum_at_deadline_is_tried_again() -> None:
    life = Pooled(limit=2)
    life.api.left = 1
    life.turn(4)
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert "InsufficientInstanceCapacity for p5.48xlarge in us-west-2b" in life.status["message"]
    life.later(DEADLINE_SECONDS)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_INSUFFICIENT_CAPACITY)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("False", n.REASON_INSUFFICIENT_CAPACITY)
    message = life.status["message"]
    assert message.startswith(
        f"1 of at least 2 nodes after {DEADLINE_SECONDS} s: InsufficientInstanceCapacity"
    )
    assert "try 2 starts at" in message
    assert (life.api.placeholders(), life.names("Job")) == ([], [])
    # By chance, so that jobs that failed together do not ask again together.
    assert RETRY_SECONDS < (life.requeue_after or 0) <= 1.2 * RETRY_SECONDS
    assert life.status["capacity"]["tries"] == 2
    assert life.reconcile() == 0  # and says so until then
    life.later(life.requeue_after or 0)
    life.api.left = 9
    life.turn(3)
    assert life.status["phase"] == "Provisioning"
    assert life.api.events.count(n.REASON_INSUFFICIENT_CAPACITY) == 1


def test_elastic_job_starts_with_its_maximum() -> None:
    life = Pooled(ELASTIC)
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"], life.status["gpus"]) == ("Provisioning", 4, 32)


def test_elastic_job_with_its_minimum_holds_for_more() -> None:
    life = Pooled(ELASTIC, limit=8)
    life.turn(1)
    late = sorted(life.api.claims)[-1]
    life.api.claims[late]["left"] = 99
    life.turn(2)
    assert life.state == ("Pending", n.REASON_HOLDING_FOR_MORE)
    life.later(HOLD_SECONDS - 1)
    life.reconcile()
    assert life.status["phase"] == "Pending"
    life.later(1)
    life.reconcile()
    assert life.status["phase"] == "Provisioning"
    assert (life.status["nodes"], life.status["gpus"]) == (3, 24)
    assert life.api.placeholders() == ["vit-hold-0", "vit-hold-1", "vit-hold-2"]
    assert late not in life.api.claims  # it was on its way, and is not waited for any more
    words = life.api.list("Job")[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--nnodes=2:3" in words
    life.api.turn()
    life.run()
    assert life.status["workers"]["active"] == 3
    assert life.reconcile() == 0


def test_elastic_job_has_claims_for_its_nodes() -> None:
    life = Pooled(ELASTIC, {"storage.workspace": {"enabled": True, "size": "1Gi"}}, limit=3)
    life.turn(3)
    life.api.turn()
    life.run()
    assert life.status["nodes"] == 3
    claims = ["vit-workspace", "vit-workspace-1", "vit-workspace-2"]
    assert life.names("PersistentVolumeClaim") == claims


def test_fixed_size_ignores_nodes_of_the_status() -> None:
    life = Pooled(TWO, {"storage.workspace": {"enabled": True, "size": "1Gi"}})
    life.turn(3)
    life.api.turn()
    life.run()
    life.api.objects[n.JOB_KIND, "vit"]["status"]["nodes"] = 1
    life.api.objects.pop(("PersistentVolumeClaim", "vit-workspace-1"))
    life.reconcile()
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]


def test_elastic_job_does_not_wait_if_no_more_can_come() -> None:
    life = Pooled(ELASTIC, limit=3)
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 3)
    life = Pooled(ELASTIC, limit=8)
    life.api.left = 2
    life.turn(3)  # EC2 has just refused the others
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 2)
    life = Pooled(ELASTIC, limit=4)
    for name in "abcd":
        life.api.add(name)
    life.api.occupy("d")
    life.api.claims = {
        name: {"metadata": {"name": name}, "status": {"nodeName": name}, "left": 0} for name in "abcd"
    }
    life.turn(1)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 3)


def test_suspended_job_holds_nothing_and_starts_over() -> None:
    life = Pooled()
    life.api.left = 1
    life.turn(2)
    life.later(DEADLINE_SECONDS - 10)
    life.api.edit(n.JOB_KIND, "vit", suspend=True)
    life.reconcile()
    assert life.status["phase"] == "Suspended"
    assert (life.api.placeholders(), "capacity" in life.status) == ([], False)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("Unknown", n.REASON_SUSPENDED)
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    life.later(30)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    life.api.left = 9
    life.turn(3)
    assert life.status["phase"] == "Provisioning"


def test_wait_ended_otherwise_deletes_the_placeholders() -> None:
    life = Pooled()
    life.reconcile()
    life.api.objects.pop((n.QUEUE_KIND, "research"))
    life.reconcile()
    assert (life.state, life.api.placeholders()) == (("Pending", n.REASON_QUEUE_NOT_FOUND), [])
    life.queue["spec"]["scheduling"] = {}
    life.api.create(life.queue)
    life.reconcile()
    assert life.status["phase"] == "Provisioning"  # a queue without a pool counts nothing
    life = Pooled()
    life.reconcile()
    life.api.edit(n.JOB_KIND, "vit", numNodes=3)  # does not divide 16: refused before its first start
    life.reconcile()
    assert (life.status["phase"], life.api.placeholders()) == ("Failed", [])


def test_resized_wait_starts_over_with_its_placeholders() -> None:
    life = Pooled({"numGPUs": 16, "numNodes": 4})
    life.api.left = 2
    life.turn(2)
    life.later(DEADLINE_SECONDS)
    life.reconcile()
    assert life.state == ("Pending", n.REASON_INSUFFICIENT_CAPACITY)
    life.api.edit(n.JOB_KIND, "vit", numNodes=2)
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 2)


def test_placeholders_of_another_template_are_replaced() -> None:
    life = Pooled()
    life.reconcile()
    before = {each["metadata"]["uid"] for each in life.api.list("Pod")}
    life.queue["spec"]["nodeResources"]["cpus"] = 48
    life.api.objects[n.QUEUE_KIND, "research"]["spec"] = life.queue["spec"]
    life.reconcile()
    after = life.api.list("Pod")
    assert not before & {each["metadata"]["uid"] for each in after}
    assert {each["spec"]["containers"][0]["resources"]["requests"]["cpu"] for each in after} == {"48"}
    assert len(after) == 2


def test_placeholders_without_preemption_are_deleted() -> None:
    life = Pooled()
    life.turn(2)
    assert len(life.api.placeholders()) == 2  # until the workers have their places
    life.later(19)
    life.reconcile()
    assert len(life.api.placeholders()) == 2
    assert (life.requeue_after or 99) <= 1
    life.later(1)
    life.reconcile()
    assert life.api.placeholders() == []
    life = Pooled({}, {"scheduling.scheduler": "kai-scheduler"}, cluster=replace(CLUSTER, kai=True))
    life.turn(2)
    assert life.status["phase"] == "Provisioning"
    assert life.api.placeholders() == []  # KAI Scheduler does not displace what is none of its own
