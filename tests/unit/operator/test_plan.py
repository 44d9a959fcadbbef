"""What of a decision is carried out where its job is another one by now."""

from __future__ import annotations

import copy

import pytest

from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.staged import JOB, NOW, QUEUE, Mortal, stage
from trainyard.operator import names as n
from trainyard.operator.plan import ReconcilePlan, apply_plan, deletion

pytestmark = pytest.mark.unit

OTHER = "example.com/theirs"
CLAIM = "/apis/karpenter.sh/v1/nodeclaims/p5-1"


@pytest.mark.parametrize("started", [False, True])
def test_no_machine_is_given_back_by_a_look_from_before_the_job_began(api: FakeApi, started: bool) -> None:
    stage(api)
    api.put(CLAIM, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "p5-1"}})
    read = copy.deepcopy(api.objects[JOB])
    decision = ReconcilePlan(deletions=(deletion(api.objects[CLAIM]),))
    if started:
        api.put(JOB, {**read, "status": {"phase": "Provisioning"}})
    blocked = apply_plan(decision, read, Mortal(api), now=lambda: NOW)
    assert (CLAIM in api.objects) is started
    assert blocked == (JOB if started else "")


@pytest.mark.parametrize("newer", [False, True])
def test_finalizers_are_not_put_over_those_that_somebody_wrote_meanwhile(api: FakeApi, newer: bool) -> None:
    stage(api)
    read = copy.deepcopy(api.objects[QUEUE])
    if newer:
        api.put(QUEUE, {**read, "metadata": {**read["metadata"], "finalizers": [OTHER]}})
    blocked = apply_plan(
        ReconcilePlan(finalizers=(n.QUEUE_FINALIZER,), status={}), read, Mortal(api), now=lambda: NOW
    )
    assert api.objects[QUEUE]["metadata"]["finalizers"] == [OTHER if newer else n.QUEUE_FINALIZER]
    assert blocked == QUEUE, "it is looked at again"
