"""Values that a preview does not know (IAM documents, the launcher's Job), checked with mocks that fill in all of them.

Whole-stack rules need references, which the mocks do not record; they run on previews and on states.
"""

from __future__ import annotations

import pytest

from tests.unit.infra.whole import shipped
from tests.unit.policies.building import made
from trainyard.policies import waivers
from trainyard.policies.evaluate import Evaluation, evaluate
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL

# Between them they have every kind of document: service accounts of users, CSI drivers, Karpenter, flow logs.
STACKS = ("cpu", "lustre-existing-vpc", "p4d")


def evaluated(name: str) -> Evaluation:
    recorded = shipped(name)
    resources = [made(each.type, each.name, **each.inputs) for each in recorded.resources]
    rules = [rule for rule in ALL if not rule.whole_stack]
    return evaluate(Stack(resources), waivers.load(), rules)


@pytest.mark.parametrize("name", STACKS)
def test_with_every_value_known_no_rule_is_violated_and_none_undecided(name: str) -> None:
    result = evaluated(name)
    assert [str(each) for each in result.violations] == []
    assert [str(each) for each in result.undecided] == []
    documents = {urn for rule, urn in result.decided if rule == "iam-actions-listed"}
    assert len(documents) > 5
