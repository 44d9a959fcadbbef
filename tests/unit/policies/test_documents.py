"""What a preview can't know of a stack (IAM documents, the launcher's Job), judged with every value filled in by mocks.

Whole-stack rules follow references, which the mocks do not record; those run on previews and on states.
"""

from __future__ import annotations

import pytest

from tests.unit.infra.whole import shipped
from tests.unit.policies.building import made
from trainyard.policies import waivers
from trainyard.policies.judge import Judgement, judge
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL

pytestmark = [
    pytest.mark.unit,
    # The SDK imports the old names of what it exports.
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

# Between them they have every kind of document: service accounts of users, CSI drivers, Karpenter, flow logs.
STACKS = ("cpu", "lustre-existing-vpc", "p4d")
# The operator's manifests are stand-ins here, and the image of a pod is what the mocks say.
NOT_HERE = {"pod-image-by-digest", "deployment-probed", "pod-token-where-needed"}


def judged(name: str) -> Judgement:
    recorded = shipped(name)
    resources = [made(each.type, each.name, **each.inputs) for each in recorded.resources]
    rules = [rule for rule in ALL if not rule.whole_stack and rule.name not in NOT_HERE]
    return judge(Stack(resources), waivers.load(), rules)


@pytest.mark.parametrize("name", STACKS)
def test_with_every_value_known_no_rule_is_violated_and_none_undecided(name: str) -> None:
    result = judged(name)
    assert [str(each) for each in result.violations] == []
    assert [str(each) for each in result.undecided] == []
    documents = {urn for rule, urn in result.ran if rule == "iam-no-wildcard-action"}
    assert len(documents) > 5
