"""A queue or a job with anything at any place: a decision comes of it, and other jobs are not disturbed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from launcher.core.torchrun import names as n
from launcher.core.torchrun.jobs import decide
from launcher.core.torchrun.kai import KaiQueue
from launcher.core.torchrun.nodes import pool_to_count
from launcher.core.torchrun.queues import Trial, trial
from launcher.core.torchrun.queues import decide as decide_queue
from tests.unit.torchrun.life import Life
from tests.unit.torchrun.made import CLUSTER
from tests.unit.torchrun.pool import POOL, PoolApi
from tests.unit.torchrun.test_parse import FULL_JOB, FULL_QUEUE, POISON, places, poisoned

pytestmark = pytest.mark.unit
KAI = replace(CLUSTER, kai=True, kai_queues={FULL_QUEUE["spec"]["kaiQueue"]: KaiQueue()})


@pytest.fixture(scope="module")
def life() -> Life:
    of_queue = {**FULL_QUEUE["spec"], "scheduling.pool": None}
    return Life({"workspace": FULL_JOB["spec"]["workspace"]}, of_queue, cluster=KAI).run()


def test_a_job_with_anything_anywhere(life: Life) -> None:
    item = life.api.get(n.JOB_KIND, "vit")
    assert item is not None
    children = life.api.list("Service", "Job", "Pod", "PersistentVolumeClaim")
    for path in places(item):
        if not path or path[0] not in ("spec", "status", "metadata") or path == ("metadata",):
            continue
        for value in POISON:
            decide(poisoned(item, path, value), life.queue, children, KAI, life.api.now)


def test_a_job_that_waits_for_nodes_with_anything_anywhere() -> None:
    life = Life({}, {**FULL_QUEUE["spec"], "scheduling.pool": POOL}, cluster=KAI, api=PoolApi())
    api = life.api
    assert isinstance(api, PoolApi)
    life.look()
    assert api.placeholders()
    item, children = api.get(n.JOB_KIND, "vit"), api.list("Service", "Pod")
    assert item is not None
    assert item["status"]["capacity"]
    pool = api.observation()
    for thing, other in ((item, life.queue), (life.queue, item)):
        for path in places(thing):
            if not path or path[0] not in ("spec", "status", "metadata") or path == ("metadata",):
                continue
            for value in POISON:
                poison = poisoned(thing, path, value)
                job, queue = (poison, other) if thing is item else (other, poison)
                pool_to_count(job, queue)
                decision = decide(job, queue, children, KAI, api.now, pool=pool)
                assert (
                    not any(each["kind"] == "Job" for each in decision.makes)
                    or "pool" in path
                    or path[0] == "spec"
                )


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Suspended", "Failed"])
def test_a_spec_with_anything_anywhere_in_any_phase(phase: str) -> None:
    item = deepcopy(FULL_JOB)
    item["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 2}
    item["status"] = {"phase": phase, "completionTime": "1970-01-01T00:00:00Z"}
    for path in places(item["spec"], ("spec",)):
        for value in POISON:
            decision = decide(poisoned(item, path, value), FULL_QUEUE, [], KAI, 5.0)
            assert decision.status is None or decision.status["phase"] in n.PHASES
            assert phase != n.PHASE_FAILED or not decision.makes
            assert phase != n.PHASE_FAILED or (decision.status or item["status"])["phase"] == phase


def test_a_queue_with_anything_anywhere() -> None:
    item: dict[str, Any] = deepcopy(FULL_QUEUE)
    item["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 2}
    ready = decide_queue(item, [], Trial(), [], KAI, 5.0)
    assert ready.status is not None
    item["status"] = ready.status
    for path in places(item):
        if not path or path[0] not in ("spec", "status", "metadata") or path == ("metadata",):
            continue
        for value in POISON:
            poison = poisoned(item, path, value)
            trial(poison, CLUSTER)
            decide_queue(poison, [], Trial(), [], KAI, 5.0)
            decide(_job(), poison, [], KAI, 5.0)


def _job() -> dict[str, Any]:
    item = deepcopy(FULL_JOB)
    item["metadata"] |= {"namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 2}
    return item
