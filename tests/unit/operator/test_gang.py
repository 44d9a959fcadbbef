"""Gangs that KAI Scheduler would never start: no pods are made for them, and the job says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.unit.operator.life import Life, Pooled, QueueLife
from tests.unit.operator.made import CLUSTER, attempt_spec, queue
from trainyard.operator import names as n
from trainyard.operator.api.status import fit_status
from trainyard.operator.gang import (
    find_missing_queue,
    gang_rejection_reason,
    lowest_limits,
    read_kai_queue,
)
from trainyard.operator.observe import ClusterState, KaiQueue
from trainyard.operator.plan import POLL_SECONDS
from trainyard.operator.queue import build_queue_context, reconcile_queue

BY_KAI = {"scheduling.scheduler": n.KAI_SCHEDULER}
IN_TEAM = {**BY_KAI, "kaiQueue": "team"}
ROOM = {"nodeResources.cpus": "96", "nodeResources.memory": "512Gi"}


def gpus(most: float, parent: str = "") -> KaiQueue:
    return KaiQueue(parent=parent, limits={"gpu": most})


def cluster(**queues: KaiQueue) -> ClusterState:
    return replace(CLUSTER, kai=True, kai_queues=queues)


def test_gang_above_the_limit_waits_without_pods() -> None:
    life = Life({}, IN_TEAM, cluster=cluster(team=gpus(15))).begin()
    assert life.state == ("Pending", "KaiQueueLimit")
    assert "requests 16 GPUs, but the limit of KAI Scheduler's queue team is 15 GPUs (" in life.message
    assert (life.names("Job"), life.names("PodGroup"), life.requeue_after) == ([], [], POLL_SECONDS)
    life.cluster = cluster(team=gpus(16))
    life.run()


def test_gang_above_the_limit_holds_no_nodes() -> None:
    life = Pooled({"numGPUs": 16}, IN_TEAM, cluster=cluster(team=gpus(0)))
    life.turn(2)
    assert life.state == ("Pending", "KaiQueueLimit")
    assert (life.names("Pod"), life.api.claims) == ([], {})


ELASTIC = {"elastic": {"minNodes": 1, "maxNodes": 2}}
TREE = {"team": gpus(32, "org"), "org": gpus(8, "top"), "top": KaiQueue()}
WITH_ROOM = {**IN_TEAM, **ROOM}


def limited(**limits: float) -> dict[str, KaiQueue]:
    return {"team": KaiQueue(limits=limits)}


@pytest.mark.parametrize(
    ("of_job", "of_queue", "queues", "message"),
    [
        ({}, IN_TEAM, TREE, "KAI Scheduler's queue org is 8 GPUs ("),
        (ELASTIC, IN_TEAM, limited(gpu=8), ""),
        (ELASTIC, IN_TEAM, limited(gpu=7), "the job requests at least 8 GPUs, but the limit"),
        ({}, BY_KAI, {n.KAI_DEFAULT_QUEUE: gpus(1)}, f"queue {n.KAI_DEFAULT_QUEUE} is 1 GPUs ("),
        ({}, {"kaiQueue": "team"}, limited(gpu=1), ""),
        ({}, WITH_ROOM, limited(cpu=191.999), "KAI Scheduler's queue team is 191.999 CPUs ("),
        ({}, WITH_ROOM, limited(memory=1e12), "of memory, but the limit of KAI Scheduler's queue team is "),
        ({}, WITH_ROOM, limited(cpu=192, memory=1.1e12, gpu=16), ""),
    ],
)
def test_gang_above_a_limit_waits_with_its_message(
    of_job: dict[str, Any], of_queue: dict[str, Any], queues: dict[str, KaiQueue], message: str
) -> None:
    life = Life(of_job, of_queue, cluster=cluster(**queues)).begin()
    assert life.status["reason"] == (n.REASON_KAI_QUEUE_LIMIT if message else n.REASON_STARTING)
    assert message in life.message


def test_limit_added_later_keeps_the_workers() -> None:
    life = Life({}, IN_TEAM, cluster=cluster(team=KaiQueue())).run()
    life.cluster = cluster(team=gpus(1))
    life.reconcile()
    assert life.status["phase"] == "Running"


def test_gang_below_a_missing_queue_waits() -> None:
    life = Life({}, IN_TEAM, cluster=cluster(team=KaiQueue(parent="org"))).begin()
    assert life.state == ("Pending", "KaiQueueNotFound")
    assert life.message == (
        "queue org of KAI Scheduler does not exist; it is above queue team. Create it, and the job starts"
    )
    life.cluster = cluster(team=KaiQueue(parent="org"), org=KaiQueue())
    life.run()


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        ({"resources": {"cpu": {"limit": 1500}, "memory": {"limit": 9}}}, {"cpu": 1.5, "memory": 9e6}),
        ({"resources": {"gpu": {"limit": 0}, "cpu": {"limit": -1}, "memory": {"quota": 4}}}, {"gpu": 0}),
        (None, {}),
    ],
)
def test_read_kai_queue_returns_only_set_limits(spec: Any, limits: dict[str, float]) -> None:
    assert read_kai_queue({"spec": spec}) == KaiQueue(limits=limits)


def test_relax_gang_after_a_success_patches_min_member() -> None:
    life = Life({"numGPUs": 16}, IN_TEAM, cluster=cluster(team=KaiQueue())).run()
    (group,) = life.api.of_kind("PodGroup")
    uid = group["metadata"]["uid"]
    assert group["spec"]["minMember"] == 2
    first, _ = (each for each in life.api.of_kind("Pod") if n.LABEL_ATTEMPT in each["metadata"]["labels"])
    first["status"]["phase"] = "Succeeded"
    life.reconcile()
    (group,) = life.api.of_kind("PodGroup")
    # IsStale of KAI 0.16 compares it with the pods that still run.
    assert (group["metadata"]["uid"], group["spec"]["minMember"]) == (uid, 1)
    assert (group["spec"]["queue"], life.status["phase"]) == ("team", "Running")


def test_kai_queues_in_a_cycle_end() -> None:
    circle = {"a": gpus(3, "b"), "b": gpus(2, "a")}
    assert find_missing_queue(circle, "a") == ""
    assert lowest_limits(circle, "a") == {"gpu": {"queue": "b", "limit": 2}}


def test_queue_status_has_the_limits_for_submit() -> None:
    tree = {"team": gpus(32, "org"), "org": gpus(8, "top"), "top": KaiQueue()}
    made = queue(IN_TEAM)
    decided = reconcile_queue(build_queue_context(made, [], cluster(**tree), 0.0, refusal=""))
    assert decided.status is not None
    kept = fit_status(n.QUEUE_KIND, decided.status)
    assert kept["kai"] == {"name": "team", "limits": {"gpu": {"queue": "org", "limit": 8}}}
    assert decided.requeue_after is not None
    assert "queue org is 8 GPUs (" in gang_rejection_reason(kept, attempt_spec({"numGPUs": 16}, IN_TEAM))
    fitting = {"numGPUs": 16, "elastic": {"minNodes": 1, "maxNodes": 2}}
    assert gang_rejection_reason(kept, attempt_spec(fitting, IN_TEAM)) == ""
    assert gang_rejection_reason(kept, attempt_spec({"numGPUs": 16})) == "", "KAI does not schedule it"
    assert gang_rejection_reason(kept, attempt_spec({"numGPUs": 16}, {**IN_TEAM, "kaiQueue": "other"})) == ""
    without = reconcile_queue(build_queue_context({**made, "status": kept}, [], CLUSTER, 0.0, refusal=""))
    assert without.status is not None
    assert "kai" not in without.status


# The objects of a two-node gang as a real KAI Scheduler (a build of March 2026) accepted them and bound both pods.
ACCEPTED: dict[str, Any] = {
    each["kind"]: each
    for each in yaml.safe_load_all("""
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: gpu}
spec:
  parentQueue: org
  resources:
    cpu: {quota: 0, limit: -1, overQuotaWeight: 1}
    gpu: {quota: 0, limit: -1, overQuotaWeight: 1}
    memory: {quota: 0, limit: -1, overQuotaWeight: 1}
---
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: vit-0, namespace: team}
spec: {minMember: 2, queue: gpu, stalenessGracePeriod: -1s, priorityClassName: train}
---
apiVersion: batch/v1
kind: Job
metadata: {name: vit-0, namespace: team}
spec:
  template:
    metadata:
      labels: {kai.scheduler/queue: gpu}
      annotations: {pod-group-name: vit-0, kai.scheduler/skip-podgrouper: "true"}
    spec: {schedulerName: kai-scheduler, priorityClassName: train}
""")
}


def subset(actual: Any, expected: Any) -> Any:
    """Return `actual` with only the metadata and the pod spec that `expected` has."""
    if not isinstance(actual, dict) or not isinstance(expected, dict):
        return actual
    return {key: subset(actual.get(key), each) for key, each in expected.items()}


def test_gang_has_the_objects_that_kai_accepted() -> None:
    queue = {"kaiQueue": "gpu", "parentKaiQueue": "org"}
    queue_life = QueueLife(queue)
    queue_life.reconcile()
    scheduling = {"scheduler": "kai-scheduler", "priorityClassName": "train"}
    cluster = replace(CLUSTER, kai=True, kai_queues={"gpu": KaiQueue()})
    life = Life({"numGPUs": 16}, {**queue, "scheduling": scheduling}, cluster=cluster).run()
    (made,) = queue_life.api.of_kind("Queue")
    (group,) = life.api.of_kind("PodGroup")
    (job,) = life.api.of_kind("Job")
    assert {each["kind"]: subset(each, ACCEPTED[each["kind"]]) for each in (made, group, job)} == ACCEPTED
    assert (made["spec"], group["spec"]) == (ACCEPTED["Queue"]["spec"], ACCEPTED["PodGroup"]["spec"])
    assert job["metadata"]["annotations"]["kai.scheduler/skip-podgrouper"] == "true"
