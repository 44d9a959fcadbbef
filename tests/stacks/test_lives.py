"""Every shipped stack file lives a whole life on the local cloud: `up`, nothing to do twice, `down`, nothing left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.previews import shipped
from tests.seed import of_run
from tests.stacks.whole import live

# A whole `up` and `down`, on a machine that may be busy.
pytestmark = pytest.mark.timeout(2400)
# The story of the main job is its life.
OTHERS = [stack for stack in shipped() if stack != "local"]


@pytest.mark.lives
@pytest.mark.parametrize("stack", shipped())
def test_a_shipped_stack_lives_from_nothing_to_nothing(stack: str, tmp_path: Path) -> None:
    print(f"written: {live(stack, tmp_path).keep(stack)}")


@pytest.mark.local
def test_one_of_them_by_chance_does(tmp_path: Path) -> None:
    stack = random.Random(of_run()).choice(OTHERS)  # noqa: S311 - not for secrets
    print(f"stack {stack}")
    live(stack, tmp_path)
