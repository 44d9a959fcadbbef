"""What follows when a pool can't give MIN nodes: the next pool, a pause and another attempt, or the end."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from launcher import manifests, observe, state_machine
from launcher import progress as progresses
from launcher.actions import CreatePlaceholder, End, Memory, Remove, Start, Step
from launcher.backends import pytorchjob
from launcher.observe import Observation
from launcher.progress import Failure, Loss, Progress, initial_progress
from launcher.request import Request
from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.test_capacity import NOW, OWNER, node, placeholder, seen
from trainyard.k8s import names

LATE = initial_progress(NOW - 300)


def large(name: str) -> dict[str, Any]:
    labels = {"karpenter.sh/nodepool": "large", "karpenter.sh/initialized": "true"}
    allocatable = {"cpu": "95", "memory": "1000Gi", "nvidia.com/gpu": "8"}
    return node(name, metadata__labels=labels, status__allocatable=allocatable)


def of(step: Step) -> Progress:
    assert step.memory.progress is not None
    return step.memory.progress


def at(observation: Observation, now: float) -> Observation:
    return dataclasses.replace(observation, now=now)


def test_failed_attempt_deletes_placeholders_and_pauses() -> None:
    request = asked(attempts=3)
    step = state_machine.step(
        request, Memory(progress=LATE), seen([node("a")], [placeholder(request, 0, "a")]), jitter=0.5
    )
    assert step.actions == (Remove(name="hold-r1-0", uid="uid-0"),)
    progress = of(step)
    assert (progress.attempt, progress.pause_until) == (2, NOW + 240 * 1.1)
    assert step.report.state == names.STATE_PAUSING
    assert step.report.reason == (
        "after 1 of 3 attempts: 1 of at least 2 nodes after 300 s: waiting for Karpenter;"
        " 0 node-seconds stood idle; the next starts at 2027-01-15T08:04:24Z"
    )


@pytest.mark.parametrize(("jitter", "longest"), [(0.0, 240.0), (0.999999, 288.0)])
def test_pause_has_at_most_20_percent_jitter(jitter: float, longest: float) -> None:
    step = state_machine.step(asked(attempts=2), Memory(progress=LATE), seen([]), jitter)
    assert of(step).pause_until == pytest.approx(NOW + longest, abs=0.01)


def test_pause_holds_nothing_and_ends_in_new_wait() -> None:
    request = asked(attempts=2)
    pausing = state_machine.step(request, Memory(progress=LATE), seen([])).memory
    pause_until = of(state_machine.step(request, pausing, seen([]))).pause_until
    assert pause_until is not None
    left = state_machine.step(request, pausing, at(seen([], [placeholder(request, 0)]), pause_until - 1))
    assert left.actions == (Remove(name="hold-r1-0", uid="uid-0"),), "a killed launcher's is removed, too"
    assert left.report.state == names.STATE_PAUSING
    again = state_machine.step(request, left.memory, at(seen([]), pause_until))
    assert [action.wait for action in again.actions if isinstance(action, CreatePlaceholder)] == ["2-0"] * 4
    assert of(again).began == pause_until
    in_time = state_machine.step(request, again.memory, at(seen([node("a")]), pause_until + 299))
    assert in_time.report.state == names.STATE_WAITING
    assert in_time.report.reason.startswith("attempt 2 of 2: ")
    last = state_machine.step(request, in_time.memory, at(seen([node("a")]), pause_until + 300))
    (end,) = last.actions
    assert isinstance(end, End)
    assert end.code == names.EXIT_BELOW_MINIMUM
    assert end.reason.startswith("after 2 of 2 attempts: 1 of at least 2 nodes after 300 s: ")


def test_placeholder_of_other_wait_is_deleted(request_: Request) -> None:
    old = manifests.placeholder(request_, 0, OWNER, "1-0")
    old["metadata"]["uid"], old["spec"]["nodeName"] = "old", "a"
    second = Memory(progress=Progress(attempt=2, candidate=0, since=NOW - 900, began=NOW - 1))
    step = state_machine.step(request_, second, seen([node("a")], [old]))
    assert step.actions[0] == Remove(name="hold-r1-0", uid="old")
    assert [action.index for action in step.actions if isinstance(action, CreatePlaceholder)] == [1, 2, 3]
    full = state_machine.step(request_, second, seen([node(name) for name in "abcd"], [old]))
    assert full.actions[0] == Remove(name="hold-r1-0", uid="old")
    assert not any(isinstance(action, Start) for action in full.actions)


def test_idle_time_is_the_sum_over_usable_nodes(request_: Request) -> None:
    step = state_machine.step(request_, Memory(), seen([node("a")]))
    for now, nodes in ((10, "a"), (15, "ab"), (30, "")):
        step = state_machine.step(request_, step.memory, at(seen([node(name) for name in nodes]), NOW + now))
    assert of(step).idle_node_seconds == 10 + 5 + 2 * 15
    end = state_machine.step(request_, step.memory, at(seen([]), NOW + 300))
    assert end.report.reason.endswith("; 45 node-seconds stood idle")


def test_idle_time_excludes_pause_and_other_pools() -> None:
    request = asked(attempts=2, fallbacks=[fallback()])
    one = seen([node("a")])
    step = state_machine.step(request, Memory(progress=LATE), one)
    limits = observe.node_pool({"spec": {"limits": {"nvidia.com/gpu": "32"}}})
    second = seen([large("b")], pool=limits)
    step = state_machine.step(request, step.memory, at(second, NOW + 120))
    assert of(step).idle_node_seconds == 0
    pause_until = of(step).pause_until
    assert pause_until is not None
    step = state_machine.step(request, step.memory, at(one, pause_until))
    assert of(step).idle_node_seconds == 0
    assert of(state_machine.step(request, step.memory, at(one, pause_until + 7))).idle_node_seconds == 7


def test_the_next_pool_is_tried_at_once_and_named() -> None:
    request = asked(fallbacks=[fallback()])
    step = state_machine.step(
        request, Memory(progress=LATE), seen([node("a")], [placeholder(request, 0, "a")])
    )
    assert step.actions == (Remove(name="hold-r1-0", uid="uid-0"),)
    assert (of(step).candidate, of(step).began, step.memory.candidate_index) == (1, NOW, 1)
    assert step.report.reason == (
        "pool small: 1 of at least 2 nodes after 300 s: waiting for Karpenter; pool large is tried next"
    )
    limits = {"spec": {"limits": {"nvidia.com/gpu": "32"}}}
    there = seen([large(name) for name in "abcd"], pool=observe.node_pool(limits))
    started = state_machine.step(request, step.memory, there)
    assert started.actions == (Start(nodes=4, reason="pool large: all 4 nodes are ready"),)
    holding = state_machine.step(request, step.memory, seen([], pool=there.pool))
    assert [action.wait for action in holding.actions if isinstance(action, CreatePlaceholder)] == ["1-1"] * 4


def test_a_fallback_has_its_own_deadline_worker_and_pool() -> None:
    request = asked(fallbacks=[fallback()])
    second = request.candidate(1)
    job = pytorchjob.build(second, 2, "r")["spec"]
    template = job["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert job["nprocPerNode"] == "8"
    assert template["nodeSelector"] == {"karpenter.sh/nodepool": "large"}
    assert template["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    waiting = Progress(attempt=1, candidate=1, since=NOW - 500, began=NOW - 119)
    limits = observe.node_pool({"spec": {"limits": {"nvidia.com/gpu": "32"}}})
    assert (
        state_machine.step(request, Memory(progress=waiting), seen([], pool=limits)).report.state == "waiting"
    )
    over = dataclasses.replace(waiting, began=NOW - 120)
    assert state_machine.step(request, Memory(progress=over), seen([], pool=limits)).report.state == "failed"


def failed(request: Request, progress: Progress, observation: Observation) -> tuple[int, str]:
    (end,) = state_machine.step(request, Memory(progress=progress), observation).actions
    assert isinstance(end, End)
    return end.code, end.reason


FIRST = Failure(pool="small", code=names.EXIT_BELOW_MINIMUM, reason="1 of at least 2 nodes after 300 s")
NEVER = Failure(pool="small", code=names.EXIT_IMPOSSIBLE, reason="there is no NodePool small")


def test_the_end_lists_each_pools_failure() -> None:
    request = asked(fallbacks=[fallback()])
    progress = Progress(attempt=1, candidate=1, since=NOW - 900, began=NOW - 1, failures=(FIRST,))
    code, reason = failed(request, progress, seen([], pool=None))
    assert code == names.EXIT_BELOW_MINIMUM, "another attempt might have helped in the first pool"
    assert reason == (
        "pool small: 1 of at least 2 nodes after 300 s; pool large: there is no NodePool large;"
        " pool must be the name of a NodePool in this cluster; 0 node-seconds stood idle"
    )


def test_impossible_pools_end_without_next_attempt() -> None:
    request = asked(fallbacks=[fallback()], attempts=5)
    progress = Progress(attempt=1, candidate=1, since=NOW, began=NOW, failures=(NEVER,))
    code, reason = failed(request, progress, seen([], pool=None))
    assert code == names.EXIT_IMPOSSIBLE
    assert reason.startswith("after 1 of 5 attempts: pool small: there is no NodePool small; pool large: ")
    hopeful = dataclasses.replace(progress, failures=(FIRST,))
    step = state_machine.step(request, Memory(progress=hopeful), seen([], pool=None))
    assert step.report.state == names.STATE_PAUSING


def test_impossible_pool_is_left_at_once() -> None:
    request = asked(fallbacks=[fallback()])
    step = state_machine.step(request, Memory(), seen([], limit="4"))
    assert of(step).candidate == 1
    assert (
        "2 nodes are needed, but NodePool small has at most 1 node (its limit is 4 nvidia.com/gpu)"
        in step.report.reason
    )


def test_progress_survives_as_one_line_of_json() -> None:
    progress = Progress(
        attempt=2,
        candidate=1,
        since=NOW - 900.25,
        began=NOW - 1,
        pause_until=NOW + 240.5,
        failures=(FIRST,),
        released=(Loss(uid="u", message="i-0 / NodeClaim x: 0 of 4 nvidia.com/gpu after 900 s"),),
        idle_node_seconds=45.5,
    )
    text = progresses.dumps(progress)
    assert "\n" not in text
    assert json.loads(text)["pause_until"] == NOW + 240.5
    assert dataclasses.asdict(progresses.loads(text, 2)) == dataclasses.asdict(progress)
    plain = initial_progress(NOW)
    assert progresses.loads(progresses.dumps(plain), 1) == plain


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"attempt": "x"}', progresses.dumps(initial_progress(1.0)) + "x"]
)
def test_what_is_no_progress_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the progress of a run"):
        progresses.loads(text, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("began", None),
        ("since", "x"),
        ("since", float("nan")),
        ("since", 10**400),
        ("attempt", True),
        ("restarts", 1.5),
        ("retiring_nodes", "3"),
        ("why", None),
        ("suspended", 0),
        ("usage", {"usd": None}),
        ("usage", None),
        ("failures", [{"pool": "small", "code": "21", "reason": "x"}]),
        ("released", [{"uid": 1, "message": "x"}]),
    ],
)
def test_progress_with_a_wrong_type_is_refused(field: str, value: object) -> None:
    values = {**json.loads(progresses.dumps(initial_progress(NOW))), field: value}
    with pytest.raises(ValueError, match="is not the progress of a run"):
        progresses.loads(json.dumps(values), 1)


@pytest.mark.parametrize(("attempt", "candidate"), [(0, 0), (1, 2), (1, -1)])
def test_progress_of_another_request_is_refused(attempt: int, candidate: int) -> None:
    other = Progress(attempt=attempt, candidate=candidate, since=NOW, began=NOW)
    with pytest.raises(ValueError, match="with 2 candidates"):
        progresses.loads(progresses.dumps(other), 2)


def test_the_next_moment_at_which_the_clock_decides() -> None:
    request = asked(attempts=3, fallbacks=[fallback()])
    first = Memory(progress=initial_progress(NOW))
    assert state_machine.due(request, Memory(), NOW) is None
    assert state_machine.due(request, first, NOW) == NOW + 300, "the deadline of the wait"
    held_open = dataclasses.replace(first, quorum_since=NOW + 10)
    assert state_machine.due(request, held_open, NOW + 10) == NOW + 40, "the end of the hold window"
    assert state_machine.due(request, held_open, NOW + 40) == NOW + 300
    assert state_machine.due(request, held_open, NOW + 300) is None
    second = Memory(progress=dataclasses.replace(initial_progress(NOW), candidate=1))
    assert state_machine.due(request, second, NOW) == NOW + 120, "each pool has a deadline of its own"
    paused = Memory(progress=dataclasses.replace(initial_progress(NOW), pause_until=NOW + 900))
    assert state_machine.due(request, paused, NOW) == NOW + 900
