"""The list of types with nothing to judge has all that a stack file makes, and nothing that none makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.policies.building import made
from trainyard.policies.judge import judge
from trainyard.policies.known_types import JUDGED, NOTHING_TO_JUDGE, RULES
from trainyard.policies.model import Stack

pytestmark = pytest.mark.unit

RECORDINGS = sorted((Path(__file__).parents[2] / "integration" / "graph" / "states").glob("*/*.json"))
# Of charts (Karpenter's), whose objects recordings do not have, and of a network without a way out
# (tests/stacks/files/Pulumi.private.yaml), which no shipped stack file has.
NOT_RECORDED = {
    "aws:iam/instanceProfile:InstanceProfile",
    "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicy",
    "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicyBinding",
    "kubernetes:policy/v1:PodDisruptionBudget",
}


def types(recording: Path) -> set[str]:
    return {each["type"] for each in json.loads(recording.read_text()).values()}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_each_type_of_a_stack_file_is_judged_or_listed(recording: Path) -> None:
    found = judge(Stack([made(type_) for type_ in types(recording)]), rules=RULES.all)
    assert [str(each) for each in found.violations] == []
    assert len(found.ran) > 50


def test_nothing_is_listed_that_no_stack_file_makes() -> None:
    made_by_some = {type_ for recording in RECORDINGS for type_ in types(recording)}
    assert NOTHING_TO_JUDGE - made_by_some == NOT_RECORDED


def test_nothing_is_listed_that_a_rule_judges() -> None:
    assert not NOTHING_TO_JUDGE & JUDGED
