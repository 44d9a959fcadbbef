"""Every shipped stack file lives a whole life on the local cloud: `up`, nothing to do twice, `down`, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shipped import shipped
from tests.stacks.whole import live

# A whole `up` and `down`, on a machine that may be busy.
pytestmark = pytest.mark.timeout(2400)


@pytest.mark.lives
@pytest.mark.parametrize("stack", shipped())
def test_a_shipped_stack_lives_from_nothing_to_nothing(stack: str, tmp_path: Path) -> None:
    print(f"written: {live(stack, tmp_path).keep(stack)}")
