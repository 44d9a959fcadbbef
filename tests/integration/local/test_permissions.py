"""What the roles used in the main job, from `up` to `down`, against what they are granted.

By its name this file comes after the main job's story; by itself it has the stack made and destroyed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.home import Home
from tests.identity.verbs import DENIED, DOCUMENTS, UNUSED, USED, role_of
from tests.integration.local.conftest import Command, deploy

# Waits for the main job's `up` and `down`.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def calls(first_up: Command, home: Home) -> dict[str, dict[str, Any]]:
    """By role, the verbs that its sessions used and were denied."""
    assert first_up.code == 0
    if home.cloud_file.exists():
        assert deploy("down", "--stack", "local", "--cloud", "local").code == 0
    read = json.loads(home.role_calls_file.read_text())
    return {role_of(name): each for name, each in read.items()}


def test_only_roles_that_we_know_called(calls: dict[str, dict[str, Any]]) -> None:
    assert set(calls) <= set(DOCUMENTS)
    assert {"karpenter", "trainer"} <= set(calls)


@pytest.mark.parametrize("role", sorted(USED))
def test_every_verb_that_is_said_to_be_used_was(role: str, calls: dict[str, dict[str, Any]]) -> None:
    used = set(calls[role]["used"])
    print(f"{role} used {json.dumps(calls[role]['used'])}")
    assert USED[role] - used == set()
    assert used - USED[role] - set(UNUSED[role]) == set()


@pytest.mark.parametrize("role", sorted(USED))
def test_nothing_was_denied_that_a_role_needs(role: str, calls: dict[str, dict[str, Any]]) -> None:
    # The tests of identity take away an action for a moment, and Karpenter may ask for it just then.
    taken_away = {"s3:PutObject", "sqs:ReceiveMessage", "ec2:DescribeSubnets", "eks:DescribeCluster"}
    assert set(calls[role]["denied"]) - taken_away - set(DENIED.get(role, {})) == set()
