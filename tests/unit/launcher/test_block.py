"""A capacity block ends: which runs are refused, and which ones get a warning."""

from __future__ import annotations

import copy
import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from components.documents.pool import request as program_side
from launcher import block, state_machine
from launcher.actions import End, Memory, Remove
from launcher.capacity import Decision, GiveUp, Submit, Wait, count, decide
from launcher.observe import Observation, Training
from launcher.progress import initial_progress
from launcher.request import Block, Moment, Request, RequestError, parse_request
from tests.unit.infra.changing import settings, with_pool
from tests.unit.infra.test_pool_settings import BLOCK
from tests.unit.launcher.conftest import DOCUMENT
from tests.unit.launcher.test_capacity import NOW, node, placeholder, seen
from trainyard.k8s import names

HOUR = 3600
DRAINED = 2400


def request(*, left: float, longest: int | None = None, fallback: bool = False) -> Request:
    """A run on a block whose machines are taken back `left` seconds after NOW, 40 minutes before its end."""
    document: dict[str, Any] = copy.deepcopy(DOCUMENT)
    document["activeDeadlineSeconds"] = longest
    document["pool"]["block"] = {
        "ends": datetime.fromtimestamp(NOW + left + DRAINED, UTC).isoformat(),
        "takenBackSeconds": DRAINED,
        "onDemandFallback": fallback,
    }
    return parse_request({"TRAINYARD_REQUEST": json.dumps(document)})


def four(now: float = NOW) -> Observation:
    return seen([node(f"n{i}") for i in range(4)], now=now)


def decided(run: Request, observation: Observation, **since: Any) -> Decision:
    return decide(run, observation, count(run, observation), **since)


def test_refusal_run_longer_than_block_is_refused() -> None:
    fits = decided(request(left=HOUR, longest=HOUR), four(), began=NOW, quorum_since=None)
    assert isinstance(fits, Submit)
    assert fits.reason == "all 4 nodes are ready"
    late = decided(request(left=HOUR, longest=HOUR + 1), four(), began=NOW, quorum_since=None)
    assert isinstance(late, GiveUp)
    assert late.code == names.EXIT_IMPOSSIBLE


def test_refusal_names_pool_end_and_limit() -> None:
    refusal = block.refusal(request(left=HOUR, longest=2 * HOUR), NOW, NOW + 300)
    assert refusal == (
        "the capacity block of pool small ends at 2027-01-15T09:40:00Z, and Karpenter drains its nodes from"
        " 2027-01-15T09:00:00Z, but the run may take until 2027-01-15T10:00:00Z;"
        " activeDeadlineSeconds must be at most 3600 instead of 7200, or the block must be a later one"
    )


@pytest.mark.parametrize("longest", [None, 1])
def test_refusal_after_drain_start_is_refused(longest: int | None) -> None:
    assert block.refusal(request(left=1, longest=longest), NOW, NOW + 300) == ""
    refusal = block.refusal(request(left=0, longest=longest), NOW, NOW + 300)
    assert refusal.endswith("it is 2027-01-15T08:00:00Z: use a pool with a later end of its reservation")


def test_a_wait_ends_when_it_has_used_up_what_the_run_needs() -> None:
    run = request(left=HOUR, longest=HOUR - 100)
    assert isinstance(decided(run, seen([], now=NOW + 100), began=NOW, quorum_since=None), Wait)
    pods = [placeholder(run, 0)]
    step = state_machine.step(run, Memory(progress=initial_progress(NOW)), seen([], pods, now=NOW + 101))
    assert step.report.state == names.STATE_FAILED
    assert [type(action) for action in step.actions] == [Remove, End], "the placeholder buys nothing more"


def test_deadline_warning_without_limit_warns() -> None:
    warned = decided(request(left=HOUR), four(), began=NOW, quorum_since=None)
    assert isinstance(warned, Submit)
    assert warned.reason == (
        "all 4 nodes are ready; Karpenter drains the nodes from 2027-01-15T09:00:00Z,"
        " and activeDeadlineSeconds is not set"
    )
    assert block.deadline_warning(request(left=HOUR, longest=60), NOW) == ""


def test_follow_on_ending_block_warns_only() -> None:
    running = Training(uid="t", ours=True, nodes=4, outcome="", message="")
    step = state_machine.step(request(left=-60), Memory(), dataclasses.replace(four(), training=running))
    assert step.report.state == names.STATE_FOLLOWING
    assert "Karpenter drains the nodes from 2027-01-15T07:59:00Z" in step.report.reason


def test_after_the_end_a_pool_with_fallback_buys_on_demand() -> None:
    assert block.refusal(request(left=-60, fallback=True), NOW, NOW + 300) != "", (
        "it still holds machines of the block"
    )
    over = request(left=-DRAINED, longest=HOUR, fallback=True)
    assert (block.refusal(over, NOW, NOW + 300), block.deadline_warning(over, NOW)) == ("", "")
    assert block.refusal(request(left=-DRAINED, longest=HOUR), NOW, NOW + 300) != ""


def ahead(begins: float, fallback: bool = False, longest: int | None = None) -> Request:
    """A run with 300 s to wait on a block that begins that many seconds after NOW and is taken back an hour later."""
    later = request(left=begins + HOUR, longest=longest, fallback=fallback)
    assert later.pool.block is not None
    block_ = dataclasses.replace(later.pool.block, begins=NOW + begins)
    return dataclasses.replace(later, pool=dataclasses.replace(later.pool, block=block_))


def test_refusal_deadline_before_block_starts_is_refused() -> None:
    step = state_machine.step(ahead(301), Memory(), seen([]))
    (end,) = step.actions
    assert isinstance(end, End)
    assert end.code == names.EXIT_IMPOSSIBLE
    assert end.reason == (
        "the capacity block of pool small starts at 2027-01-15T08:05:01Z, after the deadline of the wait at"
        " 2027-01-15T08:05:00Z; capacityDeadlineSeconds must be at least 301, or the run must start later"
    )


def test_shortfall_before_block_names_its_start() -> None:
    run = ahead(300)
    step = state_machine.step(run, Memory(), seen([]))
    assert step.report.state == names.STATE_WAITING
    assert step.report.reason.startswith("the capacity block of pool small starts at 2027-01-15T08:05:00Z")
    started = state_machine.step(run, Memory(progress=initial_progress(NOW + 10)), seen([], now=NOW + 300))
    assert "capacity block" not in started.report.reason


def test_what_a_run_may_take_counts_from_the_blocks_begin() -> None:
    assert block.refusal(ahead(200, longest=HOUR), NOW, NOW + 300) == ""
    refusal = block.refusal(ahead(200, longest=HOUR + 1), NOW, NOW + 300)
    assert f"activeDeadlineSeconds must be at most {HOUR} instead of {HOUR + 1}" in refusal


def test_refusal_with_on_demand_fallback_is_none() -> None:
    run = ahead(10_000, fallback=True)
    assert (block.refusal(run, NOW, NOW + 300), block.not_started(run, NOW)) == ("", "")


def test_the_begin_is_read_with_its_zone(document: dict[str, Any]) -> None:
    document["pool"]["block"] = {
        "begins": "2027-01-30T12:30:00+01:00",
        "ends": "2027-01-31T11:30:00Z",
        "takenBackSeconds": DRAINED,
        "onDemandFallback": False,
    }
    found = parse_request({"TRAINYARD_REQUEST": json.dumps(document)}).pool.block
    assert found is not None
    assert found.begins == datetime(2027, 1, 30, 11, 30, tzinfo=UTC).timestamp()


def test_request_of_stack_with_block_is_read(document: dict[str, Any]) -> None:
    (pool,) = settings(with_pool(**BLOCK)).pools
    document["pool"] = program_side(pool)
    found = parse_request({"TRAINYARD_REQUEST": json.dumps(document)}).pool.block
    ends = datetime(2027, 1, 31, 11, 30, tzinfo=UTC).timestamp()
    assert found == Block(ends=Moment(ends), taken_back_seconds=DRAINED, on_demand_fallback=False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ends": "2027-01-31T11:30:00"}, 'block.ends is "2027-01-31T11:30:00"; it must be a time with'),
        ({"ends": 12}, "block.ends is 12; it must be a time with its zone"),
        ({"takenBackSeconds": -1}, "block.takenBackSeconds is -1; it must be a whole number"),
        ({"onDemandFallback": "no"}, 'block.onDemandFallback is "no"; it must be true or false'),
        ({"begins": 1}, "block.begins is 1; it must be a time with its zone"),
        ({"starts": 1}, "block.starts is not known"),
    ],
)
def test_wrong_block_is_reported(document: dict[str, Any], change: dict[str, Any], expected: str) -> None:
    right = {"ends": "2027-01-31T11:30:00Z", "takenBackSeconds": DRAINED, "onDemandFallback": False}
    document["pool"]["block"] = {**right, **change}
    with pytest.raises(RequestError) as caught:
        parse_request({"TRAINYARD_REQUEST": json.dumps(document)})
    (line,) = caught.value.problems
    assert line.startswith(f"TRAINYARD_REQUEST.pool.{expected}")
