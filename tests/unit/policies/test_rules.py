"""Each rule rejects what it is there for and accepts what is right, and says what would be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.policies import (
    chart_cases,
    cluster_cases,
    identity_cases,
    kubernetes_cases,
    network_cases,
    readable_cases,
    storage_cases,
    types_cases,
)
from tests.unit.policies.building import Case, stack_of
from trainyard.policies.judge import judge
from trainyard.policies.model import Rule, Stack
from trainyard.policies.rules import ALL

pytestmark = pytest.mark.unit

AREAS = (
    chart_cases,
    network_cases,
    cluster_cases,
    identity_cases,
    storage_cases,
    kubernetes_cases,
    readable_cases,
    types_cases,
)
CASES = {name: cases for area in AREAS for name, cases in area.CASES.items()}
RULES = {rule.name: rule for rule in ALL}


EACH = pytest.mark.parametrize("name", CASES)


def messages(rule: Rule, case: Case) -> list[str]:
    judged, resources = stack_of(case)
    found = judge(Stack(resources), rules=[rule])
    assert not found.undecided
    assert (rule.name, judged.urn) in found.ran, "the rule is not about this type"
    return [each.message for each in found.violations if each.resource is judged]


def test_every_rule_has_something_to_reject_and_something_to_accept() -> None:
    assert set(CASES) == set(RULES)
    assert [name for name, cases in CASES.items() if not cases.rejects or not cases.accepts] == []


def test_the_page_about_policies_says_how_many_there_are() -> None:
    page = Path(__file__).parents[3] / "docs" / "policies.md"
    assert re.findall(r"lists the (\d+)", page.read_text()) == [str(len(ALL))]


def test_no_two_rules_have_one_name() -> None:
    assert len(RULES) == len(ALL)


@EACH
def test_rule_rejects_what_it_is_there_for(name: str) -> None:
    for index, case in enumerate(CASES[name].rejects):
        found = messages(RULES[name], case)
        assert found, f"case {index}"
        for line in found:
            assert "\n" not in line
            assert re.search(r"\b(must|needs|alone)\b", line), f"does not say what would be right: {line}"


@EACH
def test_rule_accepts_what_is_right(name: str) -> None:
    found = [messages(RULES[name], case) for case in CASES[name].accepts]
    assert found == [[] for _ in found]


def test_rule_says_what_it_wants_and_its_standards() -> None:
    for rule in ALL:
        assert rule.says.endswith((".", ":")), rule.name
        for standard in rule.standards:
            assert re.fullmatch(r"CKV2?_(AWS|K8S)_\d+|AVD-AWS-\d{4}|CIS EKS \d\.\d(\.\d+)?", standard), (
                rule.name
            )
