"""The objects of a two-node gang as a real KAI Scheduler (a build of March 2026) accepted them and bound both pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from tests.unit.operator.queue_life import Life as QueueLife
from trainyard.operator.observe import KaiQueue

pytestmark = pytest.mark.unit

ACCEPTED: dict[str, Any] = {
    each["kind"]: each
    for each in yaml.safe_load_all("""
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata:
  name: gpu
spec:
  parentQueue: org
  resources:
    cpu: {quota: 0, limit: -1, overQuotaWeight: 1}
    gpu: {quota: 0, limit: -1, overQuotaWeight: 1}
    memory: {quota: 0, limit: -1, overQuotaWeight: 1}
---
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata:
  name: vit-0
  namespace: team
spec:
  minMember: 2
  queue: gpu
  stalenessGracePeriod: -1s
  priorityClassName: train
---
apiVersion: batch/v1
kind: Job
metadata:
  name: vit-0
  namespace: team
spec:
  template:
    metadata:
      labels:
        kai.scheduler/queue: gpu
      annotations:
        pod-group-name: vit-0
        kai.scheduler/skip-podgrouper: "true"
    spec:
      schedulerName: kai-scheduler
      priorityClassName: train
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
