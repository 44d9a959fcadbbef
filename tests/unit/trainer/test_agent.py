"""When torchrun's agent would start its processes again."""

from __future__ import annotations

import pytest

from trainer.agent import would_start_anew

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("done", "most", "again"), [("0", "0", False), ("0", "3", True), ("3", "3", False)])
def test_it_does_while_restarts_are_left(done: str, most: str, again: bool) -> None:
    said = {"TORCHELASTIC_RESTART_COUNT": done, "TORCHELASTIC_MAX_RESTARTS": most}
    assert would_start_anew(said) == again


def test_without_an_agent_nobody_does() -> None:
    assert not would_start_anew({})
