"""What the fault tests hold against a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.verdict import Leavings, Trained

CLEAN = Leavings(most=2, at_once=2, bought=2)
GOOD = Trained(code=0, made=1, nodes=2, counted=2, replicas=2, places=("a", "b"), worlds=("2", "2"))


def test_a_run_that_did_nothing_wrong() -> None:
    assert CLEAN.wrongs == GOOD.wrongs == []
    assert replace(GOOD, counted=None).wrongs == [], "killed between its submit and its word of it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_once": 3}, "3 placeholders for 2 machines"),
        ({"bought": 3}, "3 machines were bought for 2"),
        ({"placeholders": ("hold-x-0",)}, "placeholder hold-x-0 is left"),
        ({"holder": "a"}, "the Lease is still held by a"),
    ],
)
def test_verdict_excess_or_leftover_is_wrong(changes: dict[str, Any], message: str) -> None:
    assert replace(CLEAN, **changes).wrongs == [message]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"code": 13}, "exit code 13"),
        ({"made": 2}, "2 training jobs were created"),
        ({"made": 0}, "0 training jobs were created"),
        ({"counted": 1}, "1 nodes were counted for a job of 2"),
        ({"replicas": 3}, "a job of 2 nodes has 3 replicas and 2 workers on 2 nodes"),
        ({"places": ("a", "a")}, "a job of 2 nodes has 2 replicas and 2 workers on 1 nodes"),
        ({"worlds": ("2", "3")}, "a job of 2 nodes has workers in worlds of 2, 3"),
        ({"worlds": ()}, "a job of 2 nodes has workers in worlds of "),
        ({"nodes": None}, "there is no training job"),
    ],
)
def test_verdict_unexpected_run_is_wrong(changes: dict[str, Any], message: str) -> None:
    assert replace(GOOD, **changes).wrongs == [message]


def test_lost_worker_is_reported_once_per_fault() -> None:
    assert len(replace(GOOD, places=("a",), worlds=("2",)).wrongs) == 1
