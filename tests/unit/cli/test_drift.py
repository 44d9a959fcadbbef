"""What `make drift` reads in the engine's event log, and what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainyard.cli.drift import Drift, describe, find_drift

URN = (
    "urn:pulumi:local::trainyard::trainyard:karpenter:Pools$kubernetes:karpenter.sh/v1:NodePool::pools-small"
)
POOL = "kubernetes:karpenter.sh/v1:NodePool"
NAME = f"{POOL} pools-small"


def event(operation: str, **more: Any) -> str:
    """An event as the engine wrote it for a NodePool in a preview of a refresh."""
    return json.dumps({"resOutputsEvent": {"metadata": {"op": operation, "urn": URN, "type": POOL, **more}}})


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (
            [
                event(
                    "update",
                    diffs=["spec"],
                    detailedDiff={"spec.disruption.consolidateAfter": {"diffKind": "update"}},
                )
            ],
            [Drift(resource=NAME, properties=("spec.disruption.consolidateAfter",))],
        ),
        ([event("update", diffs=["tags"])], [Drift(resource=NAME, properties=("tags",))]),
        ([event("delete")], [Drift(resource=NAME, deleted=True)]),
        ([event("same"), event("update"), '{"summaryEvent": {}}', '{"resOut'], []),
    ],
    ids=["changed", "changed-without-details", "deleted", "same"],
)
def test_drift_is_what_a_refresh_would_update_or_delete(events: list[str], found: list[Drift]) -> None:
    assert find_drift(events) == found


def test_report_names_each_resource_with_its_properties() -> None:
    lines = describe(
        "dev", [Drift(resource=NAME, properties=("a", "b")), Drift(resource="x y", deleted=True)]
    )
    assert lines[1:3] == [f"  {NAME}: changed: a, b", "  x y: deleted"]
    assert len(describe("dev", [])) == 1
