"""How a plan is written if its job has changed since, and the order of its conditions."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.staged import JOB, NOW, QUEUE, Mortal, stage
from trainyard.operator import names as n
from trainyard.operator.context import Condition, merge_conditions
from trainyard.operator.plan import ReconcilePlan, apply_plan, deletion

pytestmark = pytest.mark.unit
OTHER = "example.com/theirs"
CLAIM = "/apis/karpenter.sh/v1/nodeclaims/p5-1"


@pytest.mark.parametrize("started", [False, True])
def test_node_claim_of_a_job_that_has_started_is_kept(api: FakeApi, started: bool) -> None:
    stage(api)
    api.put(CLAIM, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "p5-1"}})
    read = copy.deepcopy(api.objects[JOB])
    plan = ReconcilePlan(deletions=(deletion(api.objects[CLAIM]),))
    if started:
        api.put(JOB, {**read, "status": {"phase": "Provisioning"}})
    assert apply_plan(plan, read, Mortal(api)) == (JOB if started else "")
    assert (CLAIM in api.objects) is started


@pytest.mark.parametrize("newer", [False, True])
def test_finalizers_of_another_writer_are_kept(api: FakeApi, newer: bool) -> None:
    stage(api)
    read = copy.deepcopy(api.objects[QUEUE])
    if newer:
        api.put(QUEUE, {**read, "metadata": {**read["metadata"], "finalizers": [OTHER]}})
    plan = ReconcilePlan(finalizers=(n.QUEUE_FINALIZER,), status={})
    assert apply_plan(plan, read, Mortal(api)) == QUEUE, "it is reconciled again"
    assert api.objects[QUEUE]["metadata"]["finalizers"] == [OTHER if newer else n.QUEUE_FINALIZER]


def so(*types: str) -> list[Condition]:
    return [Condition(type=each, status=True, reason="Reported", message=each) for each in types]


def types(found: list[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in found]


@pytest.mark.parametrize("every", [n.JOB_CONDITIONS, n.QUEUE_CONDITIONS])
def test_conditions_are_in_the_order_of_their_kind(every: tuple[str, ...]) -> None:
    reported = merge_conditions(None, so(*reversed(every)), 1, NOW)
    assert types(reported) == list(every)
    one_by_one: list[dict[str, Any]] = []
    for each in every[1::2] + every[0::2]:
        one_by_one = merge_conditions(one_by_one, so(each), 1, NOW)
    assert one_by_one == reported


def test_conditions_of_other_writers_come_last() -> None:
    """The reference page does not name them."""
    others = [{"type": "Zoned", "status": "True"}, {"type": "Audited", "status": "True"}]
    reported = merge_conditions(others, so(n.FAILED, n.ACCEPTED), 1, NOW)
    assert types(reported) == [n.ACCEPTED, n.FAILED, "Zoned", "Audited"]


def test_conditions_in_another_order_are_no_change() -> None:
    """Otherwise an upgrade would write all jobs at rest again."""
    before = list(reversed(merge_conditions(None, so(*n.JOB_CONDITIONS), 1, NOW)))
    assert merge_conditions(before, so(n.ACCEPTED), 1, NOW + 60) == before
    other = merge_conditions(before, [Condition(type=n.ACCEPTED, status=False, reason="No")], 1, NOW + 60)
    assert types(other) == list(n.JOB_CONDITIONS)
