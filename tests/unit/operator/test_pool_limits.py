"""What a pool can never give is said at once, and nothing is held for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.documents.pool import pool_annotations
from launcher import observe
from tests.unit.components.pools import pool as stack_pool
from tests.unit.operator.life import POOLED, Pooled
from tests.unit.operator.made import CLUSTER, attempt_spec, queue
from tests.unit.operator.pool import POOL, PoolApi
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.status import fit_status
from trainyard.operator.nodes import pool_rejection_reason, pool_status, reservation_warning
from trainyard.operator.queue import build_queue_context, reconcile_queue

pytestmark = pytest.mark.unit

NODE = {names.ANNOTATION_NODE_RESOURCES: json.dumps({"nvidia.com/gpu": "8", "cpu": "97", "memory": "1Ti"})}
NEURON = {
    "nodeResources.gpus": 0,
    "podTemplate.spec.containers": [
        {"name": "worker", "resources": {"limits": {"aws.amazon.com/neuron": "16"}}}
    ],
}
CPU = {"nodeResources.gpus": 0, "nodeResources.cpus": "96", "nodeResources.memory": "512Gi"}
PART = {"nodeResources.gpus": 1, "nodeResources.cpus": "10", "nodeResources.memory": "100Gi"}


@pytest.mark.parametrize("resource", [("memory", "2Ti"), ("cpus", "98")])
def test_worker_larger_than_every_node_is_refused(resource: tuple[str, str]) -> None:
    life = Pooled({"numGPUs": 8}, {f"nodeResources.{resource[0]}": resource[1]})
    life.api.annotations = NODE
    life.turn(2)
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert "a worker requests" in life.status["message"]
    assert life.api.bought == 0


def test_pool_without_types_is_reported() -> None:
    life = Pooled({"numGPUs": 8})
    life.reconcile()
    life.api.warn(
        "NodePool", POOL, "NodePool requirements filtered out all types", "NoCompatibleInstanceTypes"
    )
    life.reconcile()
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert f"pool {POOL} has no available instance type" in life.status["message"]


def test_pool_without_types_is_not_reported_with_free_node() -> None:
    life = Pooled({"numGPUs": 8})
    life.reconcile()
    life.api.add("free")
    life.api.warn(
        "NodePool", POOL, "NodePool requirements filtered out all types", "NoCompatibleInstanceTypes"
    )
    life.reconcile()
    assert life.state == ("Pending", n.REASON_WAITING_FOR_NODES)
    life.api.schedule()
    life.reconcile()
    assert life.state[0] == n.PHASE_PROVISIONING


def test_queue_status_has_what_submit_checks() -> None:
    life = Pooled({"numGPUs": 8}, PART)
    life.api.annotations = NODE
    life.api.taints.append({"key": "team", "value": "a", "effect": "NoSchedule"})
    life.turn()
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    status = fit_status(n.QUEUE_KIND, {"pool": pool_status(POOL, life.api.observation().pool)})
    for gpus in (1, 9):
        job = attempt_spec({"numGPUs": gpus}, {**POOLED, **PART})
        why = pool_rejection_reason(status, job, 0.0)
        assert (
            "9 GPUs are 9 nodes with 1 GPU each" if gpus == 9 else "do not tolerate: team=a:NoSchedule"
        ) in why
    bears = {"scheduling.tolerations": [{"key": "team", "operator": "Exists"}]}
    assert pool_rejection_reason(status, attempt_spec({"numGPUs": 1}, {**POOLED, **PART, **bears}), 0.0) == ""


def test_pool_without_reservation_is_waited_for() -> None:
    life = Pooled({"numGPUs": 16})
    life.api.offers[names.LABEL_CAPACITY_TYPE] = "reserved"
    life.api.reservations = []
    life.turn(2)
    assert life.state == ("Pending", n.REASON_CAPACITY_IMPOSSIBLE)
    assert "no active capacity reservation" in life.status["message"]
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
    there = [{"id": "cr-1", "state": "active"}, {"id": "cr-2", "state": "expiring"}]
    conditions = [{"type": "CapacityReservationsReady", "status": ready}]
    node_class = {"status": {"capacityReservations": there, "conditions": conditions}}
    asked = observe.reserved_class(item)
    assert asked == ("" if changes else "p5")
    assert observe.node_pool(item, node_class if asked else None).reservations == found


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
    assert said in life.status["message"]
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
    api, made = PoolApi(), queue(POOLED)
    made["metadata"]["namespace"] = "team"
    api.exists, api.annotations = exists, NODE
    decision = reconcile_queue(
        build_queue_context(made, [], CLUSTER, 0.0, refusal="", pool=api.observation())
    )
    assert decision.status is not None
    conditions = {each["type"]: each["status"] for each in decision.status["conditions"]}
    assert (conditions[n.POOL_READY], conditions[n.READY]) == (ready, ready)
    assert decision.status["pool"]["found"] is exists
    assert decision.status["pool"].get("declared", False) is exists
    assert decision.requeue_after is not None


def test_stack_declares_the_resources_of_a_node() -> None:
    made = stack_pool()
    item: dict[str, Any] = {"metadata": {"annotations": pool_annotations(made)}, "spec": {}}
    found = observe.node_pool(item)
    assert (found.node["cpu"], found.node["nvidia.com/gpu"]) == (made.vcpus, made.accelerators)
