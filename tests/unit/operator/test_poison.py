"""A queue, a job or a pod with any value at any place: the plan neither fails nor harms other jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from launcher.observe import Observation
from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from tests.unit.operator.pool import POOL, PoolApi
from tests.unit.operator.test_parse import FULL_JOB, FULL_QUEUE, INVALID, paths, with_value
from trainyard.operator import names as n
from trainyard.operator.context import build_context
from trainyard.operator.nodes import pool_to_count
from trainyard.operator.observe import KaiQueue
from trainyard.operator.queue import build_queue_context, build_trial_pod
from trainyard.operator.queue import reconcile_queue as decide_queue
from trainyard.operator.reconciler import plan_job

# One of each JSON type: test_parse.py puts all of INVALID at every place of a spec.
TYPES: list[Any] = [None, True, 10**30, "x" * 300, [None], {"": 1}]
# Values of a pod's status and annotations that the API server accepts.
OF_TYPE: dict[type, list[Any]] = {
    str: ["", "x" * 300, "9" * 5000, "²"],
    int: [-(2**31), 2**31 - 1],
    list: [[], None],
}
# What the nodes of a pool are counted by; test_plan_with_wrong_values_in_a_queue_returns has the other fields.
READ_FOR_A_POOL = ("name", "nodeResources", "scheduling")
NO_POOL = Observation(now=5.0, fresh=True, pool=None)
KAI = replace(CLUSTER, kai=True, kai_queues={FULL_QUEUE["spec"]["kaiQueue"]: KaiQueue()})


def poisons(item: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the paths below spec and metadata, each with `item` that has a wrong value there.

    The spec may be older than its schema. The API server has checked each status. All of INVALID goes to the metadata,
    one value of each type to the spec.
    """
    for path in paths(item):
        if not path or path[0] not in ("spec", "metadata") or path == ("metadata",):
            continue
        for value in INVALID if path[0] == "metadata" else TYPES:
            yield path, with_value(item, path, value)


def stored(item: dict[str, Any]) -> dict[str, Any]:
    meta = {**item["metadata"], "uid": "u", "resourceVersion": "1", "generation": 2}
    return deepcopy({**item, "metadata": meta})


@pytest.fixture(scope="module")
def life() -> Life:
    of_queue = {**FULL_QUEUE["spec"], "scheduling.pool": None}
    return Life({"workspace": FULL_JOB["spec"]["workspace"]}, of_queue, cluster=KAI).run()


@pytest.mark.long
def test_plan_with_wrong_values_in_a_job_returns(life: Life) -> None:
    children = life.api.list("Service", "Job", "Pod", "PersistentVolumeClaim")
    for _, job in poisons(life.job):
        plan_job(build_context(job, life.queue, children, KAI, life.api.now))


@pytest.mark.long
def test_plan_with_wrong_values_while_waiting_for_nodes() -> None:
    life = Life({}, {**FULL_QUEUE["spec"], "scheduling.pool": POOL}, cluster=KAI, api=PoolApi())
    api = life.api
    assert isinstance(api, PoolApi)
    life.reconcile()
    assert api.placeholders()
    item, children = life.job, api.list("Service", "Pod")
    assert item["status"]["capacity"]
    pool = api.observation()
    for thing, other in ((item, life.queue), (life.queue, item)):
        for path, poison in poisons(thing):
            if thing is life.queue and path[-1] != "spec" and path[1] not in READ_FOR_A_POOL:
                continue
            job, queue = (poison, other) if thing is item else (other, poison)
            ctx = build_context(job, queue, children, KAI, api.now, pool=pool)
            pool_to_count(ctx)
            plan = plan_job(ctx)
            jobs = [each for each in plan.creations if each["kind"] == "Job"]
            assert not jobs or "pool" in path or path[0] == "spec"


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Suspended", "Failed"])
def test_plan_with_wrong_values_in_a_spec_keeps_the_phase(phase: str) -> None:
    item = stored(FULL_JOB)
    item["status"] = {"phase": phase, "completionTime": "1970-01-01T00:00:00Z"}
    for path in paths(item["spec"], ("spec",)):
        for value in TYPES:
            plan = plan_job(
                build_context(with_value(item, path, value), FULL_QUEUE, [], KAI, 5.0, pool=NO_POOL)
            )
            assert plan.status is None or plan.status["phase"] in n.PHASES
            assert phase != n.PHASE_FAILED or not plan.creations
            assert phase != n.PHASE_FAILED or (plan.status or item["status"])["phase"] == phase


@pytest.mark.long
def test_plan_with_wrong_values_in_a_queue_returns() -> None:
    item, job = stored(FULL_QUEUE), stored(FULL_JOB)
    ready = decide_queue(build_queue_context(item, [], KAI, 5.0, refusal=""))
    assert ready.status is not None
    item["status"] = ready.status
    for path, poison in poisons(item):
        build_trial_pod(build_queue_context(poison, [], CLUSTER, 0.0))
        decide_queue(build_queue_context(poison, [], KAI, 5.0, refusal=""))
        plan_job(build_context(job, poison, [], KAI, 5.0, pool=NO_POOL))
        if path[0] == "spec":
            overridden = with_value(job, ("spec", "overrides"), poison["spec"])
            plan_job(build_context(overridden, FULL_QUEUE, [], KAI, 5.0, pool=NO_POOL))


def value_at(item: Any, path: tuple[Any, ...]) -> Any:
    return value_at(item[path[0]], path[1:]) if path else item


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_plan_with_any_values_in_a_pod_keeps_the_deadline(life: Life, phase: str) -> None:
    item = life.job
    item["spec"]["activeDeadlineSeconds"] = 60
    suspended = with_value(item, ("spec", "suspend"), True)
    children = life.api.list("Job", "Pod")
    worker = life.api.workers()[0]
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2027-01-15T08:00:00Z", "message": "no"}
    containers = [{"name": n.WORKER_CONTAINER, "state": {"terminated": ended, "waiting": {"reason": "x"}}}]
    said: dict[str, Any] = {"phase": phase, "podIP": "10.0.0.1", "message": "m", "reason": "r"}
    said |= {"conditions": [{"type": "Ready"}], "containerStatuses": containers}
    said["initContainerStatuses"] = containers
    full = {**worker, "status": said}
    others = [each for each in children if each["metadata"]["name"] != worker["metadata"]["name"]]
    for path in paths(full):
        if path[:1] != ("status",) and path[:2] != ("metadata", "annotations"):
            continue
        for value in OF_TYPE.get(type(value_at(full, path)), []):
            pods = [*others, with_value(full, path, value)]
            late = plan_job(build_context(item, life.queue, pods, KAI, life.api.now + 100))
            assert late.status is not None
            assert late.status["phase"] == n.PHASE_FAILED, path
            stopped = plan_job(build_context(suspended, life.queue, pods, KAI, life.api.now))
            assert stopped.status is not None
            assert stopped.status["phase"] == n.PHASE_SUSPENDED, path


HOSTILE_LINES = (
    "Root Cause (first observed failure):\n", "Traceback (most recent call last):\n", "  exitcode  : 1 (pid: 1)\n",
    "  rank      : 99999999999999 (local_rank: 0)\n", " |+\n", "\n", "[rank0]: ", "\x1b[31m", "\x00", "\u202e",
    "E" * 300 + "Error: ", "RendezvousGraceful", "Rendezvous", "NCCL", "TCPStore", "E0101 torch/distributed/elastic/",
    "what(): ", "a ",
)  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_termination_message_of_any_form_is_read_in_time(life: Life, line: str) -> None:
    """The kubelet keeps 4,096 bytes of it."""
    children, pods = life.api.list("Job", "Pod"), life.api.workers()
    assert pods
    ended = {"exitCode": 1, "reason": "Error", "message": (line * 4096)[:4096]}
    container = {"name": n.WORKER_CONTAINER, "state": {"terminated": ended}}
    failed = {"phase": "Failed", "containerStatuses": [container]}
    began = time.process_time()
    items = [{**each, "status": failed} if each in pods else each for each in children]
    life.plan(items)
    assert time.process_time() - began < 1.0 * len(pods)
