"""What `up` made keeps to the rules; what the preview could not decide is decided on it.

The name comes before that of the main job's story, which ends with `down` on the same local cloud.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.policies import waivers
from infra.policies.judge import Judgement, judge
from infra.policies.model import Stack as Resources
from infra.policies.reading import of_state
from tests.local.conftest import Stack
from tests.policy import checkov
from tests.policy.previews import preview_of

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

WAIVERS = waivers.load()


@pytest.fixture(scope="module")
def made(stack: Stack) -> Resources:
    """The resources in the state after `up`."""
    return of_state(stack.pulumi_state())


@pytest.fixture(scope="module")
def judged(made: Resources) -> Judgement:
    return judge(made, WAIVERS)


@pytest.fixture(scope="module")
def previewed(stack: Stack) -> Judgement:
    """The same stack file's first preview, judged."""
    return judge(preview_of("local", {"config": stack.settings()["config"]}, stack.home), WAIVERS)


def test_what_was_made_violates_no_rule(judged: Judgement) -> None:
    assert [str(each) for each in judged.violations] == []


def test_what_the_preview_could_not_decide_is_decided_after_an_update(
    previewed: Judgement, judged: Judgement
) -> None:
    assert previewed.undecided, "the preview knows everything: then this test is about nothing"
    assert [str(each) for each in previewed.undecided if each.key not in judged.ran] == []


def test_no_rule_is_undecided_after_an_update(judged: Judgement) -> None:
    assert [str(each) for each in judged.undecided] == []


def test_checkov_finds_nothing_in_what_was_made_that_is_not_waived(made: Resources, tmp_path: Path) -> None:
    verdict = checkov.judge_stack(made, tmp_path)
    assert [str(each) for each in verdict.unwaived(WAIVERS)] == []
