"""A sample of the controller's sweep: killed at two of its writes and begun anew, all ends as if nothing had been."""

from __future__ import annotations

import pytest

from tests.seed import of_run
from tests.sweeps.controller import place
from tests.sweeps.kills import pause, sample

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]


def test_a_controller_that_is_killed_at_a_write_is_taken_up_by_the_next() -> None:
    seed = of_run()
    with place() as here:
        jobs = {name.split()[1] for name in here.undisturbed.made if name.startswith("Job ")}
        assert jobs == {"fails-0", "fails-1", "paused-0", "paused-1", "deleted-0"}
        assert here.undisturbed.wrongs == ()
        # Later kills may come after the end: lives differ by a few writes.
        for kill in sample(seed, 2, here.writes * 3 // 4):
            outcome = here.strike(kill, pause(seed, kill))
            assert outcome.wrongs == (), kill
            assert outcome.at, f"{kill}: the life has fewer writes"
