"""Conditions have one order, that of the reference page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life
from trainyard.operator import names as n
from trainyard.operator.context import Condition, merge_conditions

pytestmark = pytest.mark.unit
NOW = 1_000_000.0


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


def test_running_job_with_another_order_is_not_written() -> None:
    life = Life().run()
    item = life.api.objects[n.JOB_KIND, "vit"]
    item["status"]["conditions"].reverse()
    assert life.reconcile() == 0
    reported = types(life.status["conditions"])
    life.succeed()
    assert life.status["phase"] == "Succeeded"
    ended = types(life.status["conditions"])
    assert set(reported) < set(ended)
    assert ended == [each for each in n.JOB_CONDITIONS if each in ended]
