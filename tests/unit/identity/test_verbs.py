"""Each verb that is granted stands in one of the two lists, and each list names only what is granted."""

from __future__ import annotations

import pytest

from local.aws.calls import actions_of
from tests.identity.verbs import DOCUMENTS, UNUSED, USED, role_of


@pytest.mark.parametrize("role", sorted(DOCUMENTS))
def test_every_granted_verb_is_used_or_has_its_reason(role: str) -> None:
    used, unused = USED.get(role, frozenset()), UNUSED.get(role, {})
    assert {*used, *unused} == set(actions_of(DOCUMENTS[role]()))
    assert used.isdisjoint(unused)
    assert all(len(reason) > 20 for reason in unused.values())


@pytest.mark.parametrize("role", sorted(DOCUMENTS))
def test_no_role_is_granted_a_wildcard_of_verbs(role: str) -> None:
    assert [action for action in actions_of(DOCUMENTS[role]()) if "*" in action] == []


def test_the_lists_name_no_other_roles() -> None:
    assert {*USED, *UNUSED} <= set(DOCUMENTS)


def test_a_role_is_known_by_its_name_in_the_account() -> None:
    assert role_of("trainyard-local-karpenter-2e4d85a") == "karpenter"
