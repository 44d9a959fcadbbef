"""A sample of the sweep: a killed `up` and a killed `destroy`, each followed by one `make down`, leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.previews import preview
from tests.seed import of_run
from tests.sweeps.interrupt import interrupt
from tests.sweeps.plan import interruptions
from tests.world import world

# Two whole lives of a stack, on a machine that may be busy.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1800)]

# The one whose life is shortest (docs/lives); `make sweep` tries all.
STACK = "trn1"


def test_one_down_after_a_killed_up_and_after_a_killed_destroy_leaves_nothing(tmp_path: Path) -> None:
    resources = sum(bool(step["newState"].get("custom")) for step in preview(STACK)["steps"])
    with world(tmp_path / "home", STACK) as made:
        for each in interruptions(of_run(), 2, resources):
            outcome = interrupt(made, each)
            assert outcome.down == 0, each
            assert outcome.left == (), each
