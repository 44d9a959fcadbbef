"""The mark by which a NodeClaim is known as made for a run's placeholders."""

from __future__ import annotations

import pytest

from launcher.manifests import JsonObject, add_mark, mark, read_marks
from tests.unit.launcher.kubernetes_objects import node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
KEY = mark("team", "r1")
OWN = {"key": KEY, "operator": "DoesNotExist"}


def test_mark_is_a_label_key_of_one_run() -> None:
    keys = {mark(*each) for each in (("team", "r1"), ("team", "r2"), ("other", "r1"))}
    assert len(keys) == 3
    domain, _, name = KEY.partition("/")
    assert domain == "hold.trainyard.dev"
    assert len(name) <= 63


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([], [{"matchExpressions": [OWN]}]),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE, OWN]}]),
        (
            [{"matchExpressions": [ZONE]}, {"matchFields": [ZONE]}],
            [{"matchExpressions": [ZONE, OWN]}, {"matchFields": [ZONE], "matchExpressions": [OWN]}],
        ),
        # An empty term matches no node, and must not come to match all.
        ([{}, {"matchExpressions": []}], [{}, {"matchExpressions": []}]),
    ],
)
def test_mark_is_in_every_term_of_an_affinity(terms: list[JsonObject], expected: list[JsonObject]) -> None:
    affinity = {REQUIRED: {"nodeSelectorTerms": terms}} if terms else {}
    made = add_mark({**affinity, "preferred": [1]}, KEY)
    assert made == {"preferred": [1], REQUIRED: {"nodeSelectorTerms": expected}}
    assert read_marks({"spec": {"requirements": expected[0].get("matchExpressions")}}) == (
        {KEY} if OWN in (expected[0].get("matchExpressions") or []) else set()
    )


def test_mark_keeps_no_pod_from_a_node() -> None:
    there = node("a", "small", 4, ready=True, starting=False, initialized=True, cordoned=False)
    assert add_mark({}, KEY)[REQUIRED]["nodeSelectorTerms"] == [{"matchExpressions": [OWN]}]
    assert KEY not in there.labels
