"""A status that the API server takes, whatever a pod has said."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.controller.fitting import fit
from launcher.core.torchrun import names as n

pytestmark = pytest.mark.unit

NOW = "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    ("status", "fitted"),
    [
        ({"phase": "Running", "reason": "Running"}, {"phase": "Running", "reason": "Running"}),
        ({"phase": "Nonsense"}, {}),
        ({"message": "x" * 40_000}, {"message": "x" * 32_768}),
        ({"exitCode": 3_000_000}, {}),
        ({"exitCode": True}, {}),
        ({"restarts": "3"}, {}),
        ({"startTime": "yesterday", "completionTime": NOW}, {"completionTime": NOW}),
        ({"progress": {"loss": float("nan"), "step": 2**60}}, {"progress": {}}),
        ({"progress": {"loss": float("inf"), "step": 3}}, {"progress": {"step": 3}}),
        ({"progress": [1]}, {}),
        ({"firstFailure": {"attempt": 0, "pod": "a", "rank": 10**30}}, {"firstFailure": {"attempt": 0, "pod": "a"}}),
        ({"firstFailure": {"rank": 1}}, {}),
        ({"unknown": 1}, {}),
    ],
)  # fmt: skip
def test_status_is_cut_to_its_schema(status: dict[str, Any], fitted: dict[str, Any]) -> None:
    assert fit(n.JOB_KIND, status) == fitted


def test_conditions_stay() -> None:
    condition = {
        "type": n.ACCEPTED,
        "status": "True",
        "reason": "Valid",
        "message": "",
        "lastTransitionTime": NOW,
        "observedGeneration": 2,
    }
    assert fit(n.JOB_KIND, {"conditions": [condition]}) == {"conditions": [condition]}
