"""Which reports of the launcher are a line, and which are a debug line."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from launcher.actions import Report, is_news
from launcher.manifests import stamp
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.cluster import CLAIMS, put_claim
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.test_loop import hurried

LAST = Report(state="waiting", nodes=0, of=4, claims=1, reason="1 node is starting (small-abc)")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reason": "waiting for Karpenter"}, True),
        ({"nodes": 1}, True),
        ({"state": "holding"}, True),
        ({"claims": 4}, False),
        ({"claims": 2, "reason": "2 nodes are starting (small-a1, small-b2)"}, False),
        ({"reason": f"{LAST.reason}; 1 node is cordoned"}, True),
        ({"reason": "1 node is starting (small-abc: taint x)"}, True),
    ],
)
def test_is_news_counts_and_names_alone_are_no_news(changes: dict[str, Any], expected: bool) -> None:
    report = dataclasses.replace(LAST, **changes)
    assert is_news(report, LAST) is expected
    assert is_news(report, None)


def test_start_more_nodeclaims_print_one_line(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    runner, said = hurried(api, asked(capacityDeadlineSeconds=75), lambda now: one_more(api, now))
    with caplog.at_level(logging.DEBUG, "launcher"):
        runner.run()
    started = [line for line in said if "starting (small-" in line]
    assert len(started) == 1
    debug = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    assert any("claims=4 " in line for line in debug)


def one_more(api: FakeApi, now: float) -> None:
    """Add a NodeClaim, up to four."""
    number = len(api.names(CLAIMS))
    if number < 4:
        put_claim(api, f"small-x{number}", "", created=stamp(now))
