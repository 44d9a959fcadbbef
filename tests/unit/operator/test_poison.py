"""A queue or a job with anything at any place: a decision comes of it, and other jobs are not disturbed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from tests.unit.operator.pool import POOL, PoolApi
from tests.unit.operator.test_parse import FULL_JOB, FULL_QUEUE, INVALID, paths, with_value
from trainyard.operator import names as n
from trainyard.operator.nodes import pool_to_count
from trainyard.operator.observe import _TRUSTED_METADATA, KaiQueue
from trainyard.operator.queue import build_trial_pod
from trainyard.operator.queue import reconcile_queue as decide_queue
from trainyard.operator.reconciler import plan_job

pytestmark = pytest.mark.unit
# One of each JSON type: test_parse.py puts all of INVALID at every place of a spec.
TYPES: list[Any] = [None, True, 10**30, "x" * 300, [None], {"": 1}]
# What the nodes of a pool are counted by; test_decide_with_wrong_values_in_a_queue_returns has the other fields.
READ_FOR_A_POOL = ("name", "nodeResources", "scheduling")
KAI = replace(CLUSTER, kai=True, kai_queues={FULL_QUEUE["spec"]["kaiQueue"]: KaiQueue()})


def poisons(
    item: dict[str, Any], thoroughly: tuple[str, ...] = ("status", "metadata")
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the paths below spec, status and metadata, each with `item` that has a wrong value there.

    All of INVALID goes to the parts named in `thoroughly`, one value of each type to the others.
    """
    for path in paths(item):
        if not path or path[0] not in ("spec", "status", "metadata") or path == ("metadata",):
            continue
        for value in INVALID if path[0] in thoroughly else TYPES:
            yield path, with_value(item, path, value)


@pytest.fixture(scope="module")
def life() -> Life:
    of_queue = {**FULL_QUEUE["spec"], "scheduling.pool": None}
    return Life({"workspace": FULL_JOB["spec"]["workspace"]}, of_queue, cluster=KAI).run()


@pytest.mark.long
def test_decide_with_wrong_values_in_a_job_returns(life: Life) -> None:
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    children = life.api.list("Service", "Job", "Pod", "PersistentVolumeClaim")
    for _, job in poisons(item):
        plan_job(job, life.queue, children, KAI, life.api.now)


@pytest.mark.long
def test_decide_with_wrong_values_while_waiting_for_nodes() -> None:
    life = Life({}, {**FULL_QUEUE["spec"], "scheduling.pool": POOL}, cluster=KAI, api=PoolApi())
    api = life.api
    assert isinstance(api, PoolApi)
    life.reconcile()
    assert api.placeholders()
    item, children = api.get(n.JOB_KIND, "vit"), api.list("Service", "Pod")
    assert item is not None
    assert item["status"]["capacity"]
    pool = api.observation()
    for thing, other in ((item, life.queue), (life.queue, item)):
        for path, poison in poisons(thing, ("metadata",)):
            if thing is life.queue and path[-1] != "spec" and path[1] not in READ_FOR_A_POOL:
                continue
            job, queue = (poison, other) if thing is item else (other, poison)
            pool_to_count(job, queue)
            decision = plan_job(job, queue, children, KAI, api.now, pool=pool)
            assert (
                not any(each["kind"] == "Job" for each in decision.creations)
                or "pool" in path
                or path[0] == "spec"
            )


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Suspended", "Failed"])
def test_decide_with_wrong_values_in_a_spec_keeps_the_phase(phase: str) -> None:
    item = deepcopy(FULL_JOB)
    item["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 2}
    item["status"] = {"phase": phase, "completionTime": "1970-01-01T00:00:00Z"}
    for path in paths(item["spec"], ("spec",)):
        for value in TYPES:
            decision = plan_job(with_value(item, path, value), FULL_QUEUE, [], KAI, 5.0)
            assert decision.status is None or decision.status["phase"] in n.PHASES
            assert phase != n.PHASE_FAILED or not decision.creations
            assert phase != n.PHASE_FAILED or (decision.status or item["status"])["phase"] == phase


@pytest.mark.long
def test_decide_with_wrong_values_in_a_queue_returns() -> None:
    item: dict[str, Any] = deepcopy(FULL_QUEUE)
    item["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 2}
    ready = decide_queue(item, [], "", [], KAI, 5.0)
    assert ready.status is not None
    item["status"] = ready.status
    for _, poison in poisons(item, ("metadata",)):
        build_trial_pod(poison, CLUSTER)
        decide_queue(poison, [], "", [], KAI, 5.0)
        plan_job(_job(), poison, [], KAI, 5.0)


def _job() -> dict[str, Any]:
    item = deepcopy(FULL_JOB)
    item["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 2}
    return item


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_decide_with_wrong_values_in_a_pod_keeps_deadline_and_suspension(life: Life, phase: str) -> None:
    """Whatever a pod says of itself, and of whatever type."""
    item = deepcopy(life.api.get(n.JOB_KIND, "vit"))
    assert item is not None
    item["spec"]["activeDeadlineSeconds"] = 60
    suspended = with_value(item, ("spec", "suspend"), True)
    children = life.api.list("Job", "Pod")
    worker = next(
        each for each in children if each["kind"] == "Pod" and n.LABEL_ATTEMPT in each["metadata"]["labels"]
    )
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2027-01-15T08:00:00Z", "message": "no"}
    containers = [{"name": n.WORKER_CONTAINER, "state": {"terminated": ended, "waiting": {"reason": "x"}}}]
    said = {
        "phase": phase,
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready"}],
        "message": "m",
        "reason": "r",
        "containerStatuses": containers,
        "initContainerStatuses": containers,
    }
    full = {**worker, "status": said}
    others = [each for each in children if each is not worker]
    for path in paths(full):
        if len(path) < 2 or path[0] == "spec" or path[1] in _TRUSTED_METADATA:
            continue
        for value in (*TYPES, "9" * 5000):
            pods = [*others, with_value(full, path, value)]
            late = plan_job(item, life.queue, pods, KAI, life.api.now + 100)
            assert late.status is not None
            assert late.status["phase"] == n.PHASE_FAILED, path
            stopped = plan_job(suspended, life.queue, pods, KAI, life.api.now)
            assert stopped.status is not None
            assert stopped.status["phase"] == n.PHASE_SUSPENDED, path


HOSTILE_LINES = (
    "Root Cause (first observed failure):\n",
    "Traceback (most recent call last):\n",
    "  exitcode  : 1 (pid: 1)\n",
    "  rank      : 99999999999999 (local_rank: 0)\n",
    " |+\n",
    "\n",
    "[rank0]: ",
    "\x1b[31m",
    "\x00",
    "\u202e",
    "E" * 300 + "Error: ",
)


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_termination_message_of_any_form_is_read_in_time(life: Life, line: str) -> None:
    """The kubelet keeps 4,096 bytes of it."""
    item = life.api.get(n.JOB_KIND, "vit")
    children = life.api.list("Job", "Pod")
    pods = [
        each for each in children if each["kind"] == "Pod" and n.LABEL_ATTEMPT in each["metadata"]["labels"]
    ]
    assert item is not None
    assert pods
    ended = {"exitCode": 1, "reason": "Error", "message": (line * 4096)[:4096]}
    failed = {
        "phase": "Failed",
        "containerStatuses": [{"name": n.WORKER_CONTAINER, "state": {"terminated": ended}}],
    }
    began = time.monotonic()
    items = [{**each, "status": failed} if each in pods else each for each in children]
    decision = plan_job(item, life.queue, items, KAI, life.api.now)
    assert time.monotonic() - began < 1.0 * len(pods)
    assert decision is not None
