"""What `up` made is what the preview said, and keeps to the rules; what the preview could not decide is decided on it.

`make lives` runs checkov on the state of each stack.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.agreement import contradictions
from tests.integration.graph.recordings import recorded
from tests.integration.local.conftest import Stack
from tests.integration.policy import previews
from tests.integration.policy.settled import unsettled
from tests.previews import preview_of
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack as Resources

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def made(stack: Stack) -> Resources:
    """The resources in the state after `up`, and the objects of its charts."""
    return previews.resources(stack.pulumi_state(), stack.home)


@pytest.fixture(scope="module")
def foreseen(stack: Stack) -> dict[str, Any]:
    """The same stack file's first preview, as the engine writes it down."""
    return preview_of("local", {"config": stack.settings()["config"]}, stack.home)


@pytest.fixture(scope="module")
def previewed(stack: Stack, foreseen: dict[str, Any]) -> Resources:
    """The resources of that preview."""
    return previews.resources(foreseen, stack.home)


def test_what_was_made_is_what_the_preview_said(stack: Stack, foreseen: dict[str, Any]) -> None:
    assert contradictions(recorded(foreseen), recorded(stack.pulumi_state())) == []


def test_what_was_made_violates_no_rule_and_no_rule_is_left_undecided(
    previewed: Resources, made: Resources
) -> None:
    assert evaluate(previewed).undecided, "the preview knows everything: then this test is about nothing"
    assert unsettled(previewed, made) == []
