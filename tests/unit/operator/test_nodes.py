"""A job whose queue names a pool: it starts with exactly the available nodes, or says why it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from components.documents.pool import pool_annotations
from launcher import observe
from launcher.manifests import mark, stamp
from tests.unit.components.pools import pool as stack_pool
from tests.unit.operator.life import ELASTIC, POOLED, TWO, Pooled
from tests.unit.operator.made import CLUSTER, attempt_spec, queue
from tests.unit.operator.pool import GPU, POOL, PoolApi
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.status import fit_status
from trainyard.operator.nodes import (
    DEADLINE_SECONDS,
    HOLD_SECONDS,
    NODE_START_SECONDS,
    RETRY_SECONDS,
    pool_rejection_reason,
    pool_status,
    reservation_warning,
)
from trainyard.operator.queue import build_queue_context, reconcile_queue

WAITING = ("Pending", n.REASON_WAITING_FOR_NODES)
IMPOSSIBLE = ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
INSUFFICIENT = ("Pending", n.REASON_INSUFFICIENT_CAPACITY)
STARTING = ("Provisioning", n.REASON_STARTING)
BOTH = ["vit-hold-0", "vit-hold-1"]
KAI = replace(CLUSTER, kai=True)


def after(life: Pooled, seconds: float = 0.0) -> tuple[str, str]:
    """Reconcile some seconds later. Return phase and reason."""
    life.wait(seconds)
    return life.state


def running(life: Pooled) -> Pooled:
    """Start the workers on nodes."""
    life.turn(3)
    life.api.turn()
    life.run()
    return life


def test_nodes_are_launched_before_the_workers() -> None:
    life = Pooled()
    assert after(life) == WAITING
    assert life.condition(n.CAPACITY_AVAILABLE) == ("False", n.REASON_WAITING_FOR_NODES)
    assert life.api.placeholders() == BOTH
    assert life.message == "0 of 2 nodes are ready: 2 nodes are not launched yet"
    assert life.names("Job") == []
    assert 0 < (life.requeue_after or 0) <= 2
    life.turn()
    assert life.message.startswith("0 of 2 nodes are ready: 2 nodes are starting (p5-")
    life.turn(2)
    assert life.state == STARTING
    assert life.condition(n.CAPACITY_AVAILABLE) == ("True", n.REASON_COUNTED)
    assert (life.status["nodes"], life.api.bought) == (2, 2)
    assert "capacity" not in life.status
    life.api.turn()
    assert all(each["spec"]["nodeName"] for each in life.api.workers())
    life.run()
    assert life.api.placeholders() == []
    assert (life.api.bought, life.api.most_held) == (2, 2)


def test_pool_with_several_types_and_zones_names_them() -> None:
    life = Pooled()
    life.api.offers |= {names.LABEL_ZONE: "us-west-2a,us-west-2b", names.LABEL_INSTANCE_TYPE: "p5,p5e"}
    life.api.left = 0
    life.turn(2)
    assert "for p5, p5e in us-west-2a, us-west-2b (" in life.message
    life.api.left = 9
    life.turn(2)
    assert life.status["phase"] == "Provisioning"


def test_terminated_instances_are_reported_with_the_key() -> None:
    life = Pooled()
    life.turn(1)
    assert "nodes are starting" in life.message
    for claim in list(life.api.claims):
        life.api.warn("NodeClaim", claim, "Instance is terminating", "InstanceTerminating")
        life.api.warn("NodeClaim", claim, "Interruption triggered termination", "TerminatingOnInterruption")
    assert after(life) == WAITING
    assert life.message.startswith("0 of 2 nodes are ready: EC2 terminated 2 instances of pool p5")
    assert "KMS key" in life.message
    # It is a message: nothing is deleted because of it.
    assert len(life.api.placeholders()) == 2


@pytest.mark.parametrize(("changes", "why"), [
    ({"status__conditions": [{"type": "Ready", "status": "Unknown"}]}, "is not Ready"),
    ({"status__allocatable": {"cpu": "96", "memory": "1Ti", GPU: "7"}}, f"has 7 of 8 {GPU}"),
])  # fmt: skip
def test_unusable_node_does_not_count_even_if_held(changes: dict[str, Any], why: str) -> None:
    """The launcher's tests have the other reasons (tests/unit/launcher/test_capacity.py)."""
    life = Pooled()
    for name in ("a", "b"):
        life.api.add(name)
    life.reconcile()
    life.api.schedule()
    life.api.add("b", **changes)
    assert any(each["spec"]["nodeName"] == "b" for each in life.api.list("Pod"))
    assert after(life) == WAITING
    assert life.message.startswith(f"1 of 2 nodes are ready: 1 node {why}")
    life.api.add("b")
    life.reconcile()
    assert life.status["phase"] == "Provisioning"


def test_capacity_below_minimum_at_deadline_is_tried_again() -> None:
    life = Pooled(limit=2)
    life.api.left = 1
    life.turn(4)
    assert life.state == WAITING
    assert "InsufficientInstanceCapacity for p5.48xlarge in us-west-2b" in life.message
    assert after(life, DEADLINE_SECONDS) == INSUFFICIENT
    assert life.condition(n.CAPACITY_AVAILABLE) == ("False", n.REASON_INSUFFICIENT_CAPACITY)
    message = life.message
    assert message.startswith(f"1 of at least 2 nodes after {DEADLINE_SECONDS} s: InsufficientInstance")
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


def test_elastic_job_with_its_minimum_holds_for_more() -> None:
    life = Pooled(ELASTIC, limit=8)
    life.turn(1)
    late = sorted(life.api.claims)[-1]
    life.api.claims[late]["left"] = 99
    life.turn(2)
    assert life.state == ("Pending", n.REASON_HOLDING_FOR_MORE)
    life.wait(HOLD_SECONDS - 1)
    assert life.status["phase"] == "Pending"
    life.wait(1)
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
    life = running(Pooled(ELASTIC, {"storage.workspace": {"enabled": True, "size": "1Gi"}}, limit=3))
    assert life.status["nodes"] == 3
    claims = ["vit-workspace", "vit-workspace-1", "vit-workspace-2"]
    assert life.names("PersistentVolumeClaim") == claims


def test_fixed_size_ignores_nodes_of_the_status() -> None:
    life = running(Pooled(TWO, {"storage.workspace": {"enabled": True, "size": "1Gi"}}))
    life.api.objects[n.JOB_KIND, "vit"]["status"]["nodes"] = 1
    life.api.objects.pop(("PersistentVolumeClaim", "vit-workspace-1"))
    life.reconcile()
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]


@pytest.mark.parametrize(("limit", "left", "nodes"), [(4, 9, 4), (3, 9, 3), (8, 2, 2)])
def test_elastic_job_does_not_wait_if_no_more_can_come(limit: int, left: int, nodes: int) -> None:
    """It has its maximum, the pool has no more, or EC2 has just refused more."""
    life = Pooled(ELASTIC, limit=limit)
    life.api.left = left
    life.turn(3)
    assert life.shown("phase", "nodes", "gpus") == ("Provisioning", nodes, 8 * nodes)


def test_suspended_job_holds_nothing_and_starts_over() -> None:
    life = Pooled()
    life.api.left = 1
    life.turn(2)
    life.later(DEADLINE_SECONDS - 10)
    life.edit(suspend=True)
    assert life.status["phase"] == "Suspended"
    assert (life.api.placeholders(), "capacity" in life.status) == ([], False)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("Unknown", n.REASON_SUSPENDED)
    life.api.edit(n.JOB_KIND, "vit", suspend=False)
    assert after(life, 30) == WAITING
    life.api.left = 9
    life.turn(3)
    assert life.status["phase"] == "Provisioning"


def test_wait_ended_otherwise_deletes_the_placeholders() -> None:
    life = Pooled().begin()
    life.api.objects.pop((n.QUEUE_KIND, "research"))
    life.reconcile()
    assert (life.state, life.api.placeholders()) == (("Pending", n.REASON_QUEUE_NOT_FOUND), [])
    life.queue["spec"]["scheduling"] = {}
    life.api.create(life.queue)
    life.reconcile()
    assert life.status["phase"] == "Provisioning"  # a queue without a pool counts nothing
    life = Pooled().begin()
    life.api.edit(n.JOB_KIND, "vit", numNodes=3)  # does not divide 16: refused before its first start
    life.reconcile()
    assert (life.status["phase"], life.api.placeholders()) == ("Failed", [])


def test_resized_wait_starts_over_with_its_placeholders() -> None:
    life = Pooled({"numGPUs": 16, "numNodes": 4})
    life.api.left = 2
    life.turn(2)
    assert after(life, DEADLINE_SECONDS) == INSUFFICIENT
    life.api.edit(n.JOB_KIND, "vit", numNodes=2)
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 2)


def test_placeholders_of_another_template_are_replaced() -> None:
    life = Pooled().begin()
    before = {each["metadata"]["uid"] for each in life.api.list("Pod")}
    life.queue["spec"]["nodeResources"]["cpus"] = 48
    life.api.objects[n.QUEUE_KIND, "research"]["spec"] = life.queue["spec"]
    life.reconcile()
    pods = life.api.list("Pod")
    assert not before & {each["metadata"]["uid"] for each in pods}
    assert [each["spec"]["containers"][0]["resources"]["requests"]["cpu"] for each in pods] == ["48"] * 2


class Quota(PoolApi):
    """The namespace may have as many GPUs as the job asks for, and placeholders count, too: no worker gets a pod."""

    def _work(self, job: dict[str, Any]) -> None:
        if job["spec"]["suspend"] or not self.placeholders():
            super()._work(job)
        else:
            job.setdefault("status", {}).setdefault("startTime", stamp(self.now))


@pytest.mark.parametrize(("api", "turns", "workers"), [(PoolApi, 2, 2), (Quota, 3, 0)])
def test_placeholders_without_preemption_are_deleted(api: type[PoolApi], turns: int, workers: int) -> None:
    life = Pooled(api=api())
    life.turn(turns)
    assert life.status["phase"] == "Provisioning"
    assert len(life.api.workers()) == workers
    life.wait(19)
    assert life.api.placeholders() == BOTH  # until the workers have their places
    assert (life.requeue_after or 99) <= 1
    life.wait(1)
    assert life.api.placeholders() == []
    assert len(life.api.workers()) == 2


def test_kai_queue_has_no_placeholders_and_lets_workers_wait() -> None:
    """KAI Scheduler does not displace what is none of its own, and may let pods wait."""
    life = Pooled({}, {"scheduling.scheduler": "kai-scheduler"}, cluster=KAI)
    life.turn(2)
    assert life.status["phase"] == "Provisioning"
    assert life.api.placeholders() == []
    life.wait(5000)
    assert (life.status["phase"], life.status["restarts"]) == ("Provisioning", 0)


def test_impossible_job_is_reported_without_placeholders() -> None:
    life = Pooled({"numGPUs": 40}, limit=4)
    assert after(life) == IMPOSSIBLE
    assert "40 GPUs are 5 nodes with 8 GPUs each (nodeResources.gpus of the queue is 8)" in life.message
    assert "at most 4 nodes (its limit is 32 nvidia.com/gpu); ask for at most 32 GPUs" in life.message
    assert life.api.placeholders() == []
    life.api.limit = 5
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 5)

    life = Pooled().begin()
    life.api.exists = False
    assert after(life) == ("Pending", n.REASON_POOL_NOT_FOUND)
    assert life.condition(n.CAPACITY_AVAILABLE) == ("False", n.REASON_POOL_NOT_FOUND)
    assert life.api.placeholders() == []

    life = Pooled()
    life.api.taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    life.reconcile()
    assert "taints that the workers do not tolerate: team=a:NoSchedule. Add" in life.message

    life = Pooled(cluster=replace(CLUSTER, placeholders=False))
    assert after(life) == ("Pending", n.REASON_PRIORITY_CLASS_NOT_FOUND)
    assert "trainyard-placeholder" in life.message
    assert life.api.placeholders() == []


NEVER = ("Pod", "vit-hold-1", "Failed to schedule pod, no instance type has enough resources, requirements=a")
NO_TYPE = ("NodePool", POOL, "NodePool requirements filtered out all types", "NoCompatibleInstanceTypes")


@pytest.mark.parametrize(("warning", "reported"), [
    (NEVER, "pool p5 has no instance type that can run a worker: no instance type has enough"),
    (("Pod", "vit-hold-1", "no instance type met all requirements, requirements=gpu In [h100]"), "gpu In [h100]"),
    (NO_TYPE, "pool p5 has no available instance type"),
    (("Pod", "vit-hold-1", "no instance type has the required offering, requirements=a, resources=b"), ""),
    (("Pod", "else-hold-0", "no instance type has enough resources, requirements=a, resources=b"), ""),
])  # fmt: skip
def test_verdict_of_karpenter_is_reported(warning: tuple[str, ...], reported: str) -> None:
    life = Pooled().begin()
    life.api.warn(*warning)
    assert after(life) == (IMPOSSIBLE if reported else WAITING)
    assert reported in life.message
    assert life.api.placeholders() == ([] if reported else BOTH)
    assert after(life, life.requeue_after or 0) == WAITING
    assert life.api.placeholders() == BOTH


@pytest.mark.parametrize(
    ("warning", "is_held", "state"),
    [(NO_TYPE, False, WAITING), (NEVER, False, IMPOSSIBLE), (NEVER, True, WAITING)],
)
def test_verdict_counts_unless_the_job_has_a_node(
    warning: tuple[str, ...], is_held: bool, state: tuple[str, str]
) -> None:
    life = Pooled()
    life.api.add("idle")
    life.reconcile()
    assert "1 node is free, but not reserved" in life.message
    if is_held:
        life.api.schedule()
    life.api.warn(*warning)
    assert after(life) == state


def test_worker_without_a_node_restarts_after_the_start_time() -> None:
    life = Pooled()
    life.turn(2)
    life.api.left = 0
    life.api.lose(sorted(life.api.nodes)[0])
    life.api.turn()
    life.reconcile()
    waiting = [each for each in life.api.workers() if not each["spec"]["nodeName"]]
    assert (life.status["phase"], len(waiting)) == ("Provisioning", 1)
    life.wait(899)
    assert life.status["phase"] == "Provisioning"
    assert (life.requeue_after or 99) <= 1
    life.wait(1)
    assert life.status["restarts"] == 1
    assert "WorkerFailed" in life.api.events
    life.turn()
    assert life.state == ("Restarting", n.REASON_WAITING_FOR_NODES)
    assert life.names("Job") == []


def test_failed_placeholder_holds_nothing() -> None:
    life = Pooled()
    for name in ("a", "b"):
        life.api.add(name)
    life.reconcile()
    life.api.schedule()
    life.api.objects["Pod", "vit-hold-0"]["status"]["phase"] = "Failed"
    assert after(life) == WAITING
    life.turn()
    assert life.state == STARTING


def test_elastic_job_continues_without_a_lost_node() -> None:
    life = Pooled(ELASTIC)
    life.turn(2)
    life.api.left = 0
    life.api.lose(sorted(life.api.nodes)[0])
    life.api.turn()
    life.reconcile()
    life.wait(2000)
    assert (life.status["phase"], life.status["restarts"]) == ("Provisioning", 0)


def test_next_attempt_waits_for_earlier_workers() -> None:
    life = running(Pooled())
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
    life = running(Pooled({"numGPUs": 16, "activeDeadlineSeconds": DEADLINE_SECONDS + 100}))
    life.api.left = 0
    life.api.lose(sorted(life.api.nodes)[0])
    life.turn()
    assert after(life, DEADLINE_SECONDS) == ("Restarting", n.REASON_INSUFFICIENT_CAPACITY)
    assert life.requeue_after == 100
    assert after(life, 100) == ("Failed", n.REASON_DEADLINE_EXCEEDED)
    assert "capacity" not in life.status


def test_finished_worker_being_deleted_takes_no_node() -> None:
    life = running(Pooled())
    failed = sorted(each["metadata"]["name"] for each in life.api.workers())[0]
    life.api.objects["Pod", failed]["metadata"]["stuck"] = True
    life.api.run_pods("Failed", exit_code=1, only=0)
    life.turn()
    assert life.state == ("Restarting", n.REASON_STOPPING)
    assert life.api.placeholders() == BOTH


def test_node_that_never_became_usable_is_released() -> None:
    life = Pooled()
    life.turn(1)
    lame = next(iter(life.api.claims))
    life.api.claims[lame]["left"] = 9999
    life.api.turn()
    life.wait(899)
    assert lame in life.api.claims
    life.later(1)
    life.api.claims[lame]["status"] = {"nodeName": "lame"}
    life.api.add("lame", metadata__labels={"karpenter.sh/nodepool": POOL}, spec__unschedulable=True)
    spec = {"nodeName": "lame", "containers": []}
    life.api.others["theirs"] = {"metadata": {"name": "theirs"}, "spec": spec, "status": {"phase": "Running"}}
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
    assert f"0 of 8 {GPU}" in life.message
    assert list(life.api.claims) == [claim]


@pytest.mark.parametrize("others", [False, True])
def test_nodes_starting_are_released_unless_others_wait(others: bool) -> None:
    life = Pooled()
    life.turn(1)
    if others:
        spec = {"containers": [], "tolerations": [{"operator": "Exists"}], "nodeName": ""}
        meta = {"name": "theirs", "namespace": "default"}
        life.api.unheard.add("theirs")  # a moment ago
        life.api.others["theirs"] = {"metadata": meta, "spec": spec, "status": {}}
    life.later(DEADLINE_SECONDS)
    for claim in life.api.claims.values():  # they came a moment ago
        claim["left"] = 9999
        claim["metadata"]["creationTimestamp"] = life.status["capacity"]["since"]
    life.reconcile()
    assert life.state == INSUFFICIENT
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
    life.wait(NODE_START_SECONDS + 1)
    assert after(life, DEADLINE_SECONDS) == INSUFFICIENT
    assert life.api.claims == theirs


def test_events_alone_delete_no_node_claim() -> None:
    life = Pooled()
    life.turn(1)
    own = dict(life.api.claims)
    for claim in own.values():
        claim["left"] = 9999
    life.api.warn("Pod", "vit-hold-0", "no instance type has enough resources, requirements=x")
    assert after(life) == IMPOSSIBLE
    assert life.api.claims == own
    assert own


def test_clock_set_back_prolongs_nothing() -> None:
    life = Pooled()
    life.api.left = 0
    life.turn(1)
    life.wait(-5000)
    assert after(life, DEADLINE_SECONDS) == INSUFFICIENT
    life.wait(-5000)
    assert (life.requeue_after or 0) <= 1.2 * RETRY_SECONDS


def test_placeholder_name_taken_is_reported() -> None:
    life = Pooled()
    theirs = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vit-hold-0", "labels": {}}, "spec": {}}
    life.api.create(theirs)
    assert after(life) == ("Pending", n.REASON_NAME_TAKEN)
    assert "Pod vit-hold-0 does not belong to this job" in life.message
    life.api.objects.pop(("Pod", "vit-hold-0"))
    assert after(life) == WAITING


# --- jobs that a pool can never fit

NODE = {names.ANNOTATION_NODE_RESOURCES: json.dumps({"nvidia.com/gpu": "8", "cpu": "97", "memory": "1Ti"})}
CORES = {"name": "worker", "resources": {"limits": {"aws.amazon.com/neuron": "16"}}}
NEURON = {"nodeResources.gpus": 0, "podTemplate.spec.containers": [CORES]}
CPU = {"nodeResources.gpus": 0, "nodeResources.cpus": "96", "nodeResources.memory": "512Gi"}
PART = {"nodeResources.gpus": 1, "nodeResources.cpus": "10", "nodeResources.memory": "100Gi"}


def test_queue_status_has_what_submit_checks() -> None:
    life = Pooled({"numGPUs": 8}, PART)
    life.api.annotations = NODE
    life.api.taints.append({"key": "team", "value": "a", "effect": "NoSchedule"})
    life.turn()
    assert life.state == IMPOSSIBLE
    status = fit_status(n.QUEUE_KIND, {"pool": pool_status(POOL, life.api.observation().pool)})
    tolerates = {"scheduling.tolerations": [{"key": "team", "operator": "Exists"}]}
    for gpus, own, why in (
        (1, {}, "do not tolerate: team=a:NoSchedule"),
        (9, {}, "9 GPUs are 9 nodes with 1 GPU each"),
        (1, tolerates, ""),
    ):
        reported = pool_rejection_reason(
            status, attempt_spec({"numGPUs": gpus}, {**POOLED, **PART, **own}), 0.0
        )
        assert why in reported
        assert bool(reported) == bool(why)


def test_pool_without_reservation_is_waited_for() -> None:
    life = Pooled({"numGPUs": 16})
    life.api.offers[names.LABEL_CAPACITY_TYPE] = "reserved"
    life.api.reservations = []
    life.turn(2)
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert "no active capacity reservation" in life.message
    assert (life.names("Pod"), life.api.bought) == ([], 0)
    kept = pool_status(POOL, life.api.observation().pool)
    assert kept["reservations"] == 0
    assert "no active capacity reservation" in reservation_warning({"pool": kept}, POOL)
    assert reservation_warning({"pool": kept}, "another") == ""
    life.api.reservations = [{"id": "cr-1", "state": "active"}]
    life.turn(3)
    assert life.status["phase"] == "Provisioning"
    assert reservation_warning({"pool": pool_status(POOL, life.api.observation().pool)}, POOL) == ""


def test_nodes_of_an_ended_reservation_take_workers() -> None:
    life = Pooled({"numGPUs": 8})
    life.api.offers[names.LABEL_CAPACITY_TYPE] = "reserved"
    life.api.reservations = [{"id": "cr-1", "state": "expiring"}]
    life.api.add("one")
    life.turn(2)
    assert (life.status["phase"], life.api.bought) == ("Provisioning", 0)


@pytest.mark.parametrize(
    ("changes", "ready", "found"),
    [
        ({}, "True", 1),
        ({"values": ["reserved", "on-demand"]}, "True", None),
        ({"operator": "NotIn"}, "True", None),
        ({}, "False", None),
    ],
)
def test_reservations_bind_only_pools_of_reserved_capacity(
    changes: dict[str, Any], ready: str, found: int | None
) -> None:
    bought = {"key": names.LABEL_CAPACITY_TYPE, "operator": "In", "values": ["reserved"], **changes}
    named = {"group": observe.NODE_CLASS_GROUP, "name": "p5"}
    item = {"spec": {"template": {"spec": {"nodeClassRef": named, "requirements": [bought]}}}}
    present = [{"id": "cr-1", "state": "active"}, {"id": "cr-2", "state": "expiring"}]
    conditions = [{"type": "CapacityReservationsReady", "status": ready}]
    node_class = {"status": {"capacityReservations": present, "conditions": conditions}}
    assert observe.reserved_class(item) == ("" if changes else "p5")
    assert observe.node_pool(item, None if changes else node_class).reservations == found


@pytest.mark.parametrize(
    ("of_queue", "limits", "said"),
    [
        (NEURON, {"aws.amazon.com/neuron": "32"}, "at most 2 nodes (its limit is 32 aws.amazon.com/neuron)"),
        (CPU, {"cpu": "200"}, "at most 2 nodes (its limit is 200 cpu)"),
        (CPU, {"memory": "1100Gi"}, "at most 2 nodes (its limit is 1100Gi memory)"),
        (CPU, {"nodes": "2"}, "at most 2 nodes; ask for at most 2 nodes, or raise"),
    ],
)
def test_limits_of_each_requested_resource_count(
    of_queue: dict[str, Any], limits: dict[str, str], said: str
) -> None:
    life = Pooled({"numGPUs": 0, "numNodes": 3}, of_queue)
    life.api.limits = limits
    life.api.offers[names.LABEL_INSTANCE_TYPE] = "one,another"
    life.turn(2)
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert said in life.message
    assert life.api.bought == 0
    status = {"pool": pool_status(POOL, life.api.observation().pool)}
    job = attempt_spec({"numGPUs": 0, "numNodes": 3}, {**POOLED, **of_queue})
    assert said in pool_rejection_reason(status, job, 0.0)


def test_elastic_job_starts_within_the_limit() -> None:
    asked = {"numGPUs": 9, "elastic": {"minNodes": 4, "maxNodes": 9}}
    life = Pooled(asked, PART)
    life.api.annotations = NODE
    status = {"pool": pool_status(POOL, life.api.observation().pool)}
    assert pool_rejection_reason(status, attempt_spec(asked, {**POOLED, **PART}), 0.0) == ""
    life.turn(3)
    assert (life.status["phase"], life.status["nodes"]) == ("Provisioning", 4)
    more = {**asked, "elastic": {"minNodes": 5, "maxNodes": 9}}
    assert "5 nodes are needed" in pool_rejection_reason(status, attempt_spec(more, {**POOLED, **PART}), 0.0)


@pytest.mark.parametrize(("exists", "ready"), [(True, "True"), (False, "False")])
def test_queue_reports_its_pool(exists: bool, ready: str) -> None:
    api = PoolApi()
    api.exists, api.annotations = exists, NODE
    ctx = build_queue_context(queue(POOLED), [], CLUSTER, 0.0, refusal="", pool=api.observation())
    plan = reconcile_queue(ctx)
    assert plan.status is not None
    conditions = {each["type"]: each["status"] for each in plan.status["conditions"]}
    assert (conditions[n.POOL_READY], conditions[n.READY]) == (ready, ready)
    assert plan.status["pool"]["found"] is plan.status["pool"].get("declared", False) is exists
    assert plan.requeue_after is not None


def test_stack_declares_the_resources_of_a_node() -> None:
    made = stack_pool()
    item: dict[str, Any] = {"metadata": {"annotations": pool_annotations(made)}, "spec": {}}
    found = observe.node_pool(item)
    assert (found.node["cpu"], found.node["nvidia.com/gpu"]) == (made.vcpus, made.accelerators)
