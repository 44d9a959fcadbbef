"""Why nodes are not there yet, as a person reads it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher import capacity, observe, refusals
from launcher.capacity import Submit, Wait, count, decide
from launcher.observe import NodePool
from launcher.request import Request
from tests.unit.launcher.test_capacity import NOW, node, placeholder, seen


def warning(
    name: str, message: str = "", reason: str = "InsufficientCapacityError", at: float = NOW
) -> observe.WarningEvent:
    return observe.WarningEvent(kind="NodeClaim", name=name, reason=reason, message=message, at=at)


def shortfall(request: Request, observation: observe.Observation, since: float = NOW) -> str:
    return capacity.shortfall(request, observation, count(request, observation), since)


def test_shortfall_names_refusal_and_advice(request_: Request) -> None:
    warnings = (
        warning("small-1", "with fleet error(s), InsufficientInstanceCapacity: no capacity"),
        warning("small-2", "InsufficientInstanceCapacity"),
        warning("small-3", "VcpuLimitExceeded: you have requested more"),
        warning("large-1", "UnfulfillableCapacity"),
        warning("small-4", "Unsupported", at=NOW - 1000),
    )
    assert shortfall(request_, seen([], warnings=warnings), NOW - 10) == (
        "InsufficientInstanceCapacity for g5.12xlarge in us-west-2b (2x), "
        "VcpuLimitExceeded for g5.12xlarge in us-west-2b (1x; raise the account's vCPU quota)"
    )


@pytest.mark.parametrize("stamp", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "now"])
def test_event_with_a_time_that_is_none_can_be_read(stamp: str) -> None:
    event = {"metadata": {}, "lastTimestamp": stamp, "involvedObject": {"kind": "NodeClaim", "name": "a"}}
    assert observe.warning_event(event).at == 0.0


def test_event_of_any_length_is_kept_short() -> None:
    event = {"metadata": {}, "message": "x" * 2**20, "reason": "r" * 2**20, "involvedObject": {}}
    found = observe.warning_event(event)
    assert max(len(found.message), len(found.reason)) <= 2000


def test_reason_names_instances_that_ended_by_themselves(request_: Request) -> None:
    ended = "TerminatingOnInterruption"
    warnings = (
        warning("small-1", reason="InstanceTerminating"),
        warning("small-1", reason=ended),
        warning("small-2", reason=ended),
        warning("small-3", reason="SpotInterrupted"),
        warning("small-3", reason=ended),
        warning("small-4", reason="InstanceTerminating"),
        warning("large-1", reason=ended),
        warning("small-5", reason=ended, at=NOW - 1000),
    )
    text = shortfall(request_, seen([], warnings=warnings), NOW - 10)
    assert "EC2 terminated 2 instances of pool small (g5.12xlarge in us-west-2b)" in text
    assert "cluster.volumeKey" in text
    assert "--query 'Reservations[].Instances[].StateReason.Message'" in text
    assert "EC2 terminated" not in shortfall(request_, seen([], warnings=warnings[3:]), NOW - 10)


def test_shortfall_names_unready_class_and_nodes(request_: Request) -> None:
    pool = NodePool(limits={}, ready=False, problem="NodeClassReady=False")
    nodes = [node("a", status__allocatable={}), node("b", spec__unschedulable=True)]
    expected = "NodePool small is not ready: NodeClassReady=False; 1 node has 0 of 40 cpu; 1 node is cordoned"
    assert shortfall(request_, seen(nodes, pool=pool)) == expected


def test_node_pool_unready_has_cause_of_class() -> None:
    def pool(**statuses: tuple[str, str]) -> NodePool:
        conditions = [
            {"type": kind, "status": status, "message": message}
            for kind, (status, message) in statuses.items()
        ]
        return observe.node_pool({"metadata": {"name": "small"}, "status": {"conditions": conditions}})

    lacking = ("False", "SubnetsReady=False")
    found = pool(NodeClassReady=lacking, Ready=("False", "NodeClassReady=False"))
    assert (found.ready, found.problem) == (False, "SubnetsReady=False")
    found = pool(Ready=("False", "ValidationSucceeded=False"))
    assert (found.ready, found.problem) == (False, "ValidationSucceeded=False")
    found = pool(NodeClassReady=("True", ""), Ready=("True", ""))
    assert (found.ready, found.problem) == (True, "")


def starting(name: str, status: str = "True", reason: str = "Launched", message: str = "") -> observe.Claim:
    launched = {"type": "Launched", "status": status, "reason": reason, "message": message}
    return observe.claim({"metadata": {"name": name}, "status": {"conditions": [launched]}})


def test_shortfall_names_nodeclaims(
    request_: Request,
) -> None:
    def message(*claims: observe.Claim) -> str:
        return shortfall(request_, seen([], claims=claims))

    new = starting("small-a", "Unknown", "AwaitingReconciliation", "object is awaiting reconciliation")
    assert message(starting("small-b"), new) == "2 nodes are starting (small-a, small-b)"
    assert message(*(starting(f"small-{index}") for index in range(6))) == (
        "6 nodes are starting (small-0, small-1, small-2, small-3 and 2 more)"
    )
    refused = starting(
        "small-c", "Unknown", "Unauthorized", "User is not authorized to perform this operation"
    )
    assert message(refused, starting("small-b")) == (
        "1 node is not launched: Unauthorized: User is not authorized to perform this operation; "
        "1 node is starting (small-b)"
    )
    assert message(dataclasses.replace(refused, deleting=True)) == "waiting for Karpenter"


NEW = {"karpenter.sh/nodepool": "small"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metadata__labels": NEW}, "not initialized"),
        (
            {
                "metadata__labels": NEW,
                "spec__taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
            },
            "not initialized",
        ),
        ({"metadata__labels": NEW, "spec__taints": [{"key": "team", "effect": "NoSchedule"}]}, "taint team"),
        ({"metadata__labels": NEW, "status__conditions": []}, "not Ready"),
    ],
)
def test_shortfall_counts_a_joined_node_once(
    request_: Request, changes: dict[str, Any], problem: str
) -> None:
    claims = tuple(dataclasses.replace(starting(f"small-{each}"), node=each) for each in "abc")
    pods = [placeholder(request_, index) for index in range(3)]
    observation = seen([node(each, **changes) for each in "ab"], pods, claims=claims)
    assert (
        shortfall(request_, observation)
        == f"2 nodes are starting (small-a, small-b: {problem}); 1 node is starting (small-c)"
    )


def test_shortfall_counts_nodes_that_are_not_launched(request_: Request) -> None:
    pods = [placeholder(request_, index) for index in range(4)]
    observation = seen([node("free")], pods, claims=(starting("small-a"),))
    assert shortfall(request_, observation) == "1 node is starting (small-a); 2 nodes are not launched yet"


def test_refusals_of_pool_with_same_prefix_are_separate(request_: Request) -> None:
    refused = warning("small-b-x4k2p")
    assert list(refusals.refusals(request_, (refused,), NOW)) == []
    other = dataclasses.replace(request_, pool=dataclasses.replace(request_.pool, name="small-b"))
    assert [code for _, code in refusals.refusals(other, (refused,), NOW)] == ["InsufficientCapacityError"]


REFUSED = warning("small-x4k2p", "VcpuLimitExceeded", at=NOW - 20)


def pool(*capacity_types: str) -> NodePool:
    requirement = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": list(capacity_types)}
    return observe.node_pool({"spec": {"template": {"spec": {"requirements": [requirement]}}}})


def decided(request: Request, observation: observe.Observation, held: float = 0.0) -> Submit | Wait:
    counted = count(request, observation)
    found = decide(request, observation, counted, began=NOW - 60, quorum_since=NOW - held)
    assert isinstance(found, Submit | Wait)
    return found


TWO = [node("a"), node("b")]


def test_decide_after_refusal_does_not_hold(request_: Request) -> None:
    observation = seen(TWO, pool=pool("on-demand"), warnings=(REFUSED,))
    assert decided(request_, observation) == Submit(
        nodes=2,
        reason="2 nodes are ready, and no more can come: VcpuLimitExceeded for g5.12xlarge in us-west-2b"
        " (1x; raise the account's vCPU quota)",
        by_events=True,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"warnings": ()},
        {"warnings": (dataclasses.replace(REFUSED, at=NOW - 61),)},
        {"warnings": (dataclasses.replace(REFUSED, name="large-x4k2p"),)},
        {"pool": pool("reserved", "on-demand")},
        {"pool": pool()},
        {"claims": (starting("small-b"),)},
        {"nodes": tuple(map(observe.node, (*TWO, node("c", status__conditions=[]))))},
    ],
)
def test_decide_holds_while_more_may_come(request_: Request, changes: dict[str, object]) -> None:
    observation = seen(TWO, pool=pool("on-demand"), warnings=(REFUSED,))
    assert decided(request_, dataclasses.replace(observation, **changes)) == Wait(quorum_since=NOW)


def test_decide_long_hold_continues_after_refusal(request_: Request) -> None:
    observation = seen(TWO, pool=pool("on-demand"), warnings=(REFUSED,))
    for seconds, kind in ((160, Submit), (161, Wait)):
        patient = dataclasses.replace(request_, hold_seconds=seconds)
        assert isinstance(decided(patient, observation), kind)


def test_decide_ignores_failed_nodeclaims(request_: Request) -> None:
    lost = dataclasses.replace(starting("small-c"), deleting=True)
    refused = starting("small-d", "Unknown", "Unauthorized", "no")
    ready = dataclasses.replace(starting("small-e"), initialized=True)
    observation = seen(TWO, pool=pool("on-demand"), warnings=(REFUSED,), claims=(lost, refused, ready))
    assert isinstance(decided(request_, observation), Submit)
