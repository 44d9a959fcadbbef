"""Who holds a Lease. Its whole life is in tests/unit/launcher/test_lease.py."""

from __future__ import annotations

import pytest

from trainyard.k8s.lease import Holding, Observed, Standing, evaluate


@pytest.mark.parametrize(
    ("found", "before", "later", "standing"),
    [
        (None, None, 0, Standing.FREE),
        (Holding(holder="", renewed="1", transitions=3), None, 0, Standing.FREE),
        (Holding(holder="me", renewed="1", transitions=0), None, 0, Standing.OURS),
        (Holding(holder="x", renewed="1", transitions=0), None, 0, Standing.UNSURE),
        (Holding(holder="x", renewed="1", transitions=0), "1", 14, Standing.UNSURE),
        (Holding(holder="x", renewed="1", transitions=0), "1", 15, Standing.FREE),
        (Holding(holder="x", renewed="2", transitions=0), "1", 99, Standing.TAKEN),
        (Holding(holder="y", renewed="1", transitions=1), "1", 1, Standing.TAKEN),
    ],
)
def test_standing_follows_holder_and_its_renewals(
    found: Holding | None, before: str | None, later: float, standing: Standing
) -> None:
    seen_before = (
        Observed(holding=Holding(holder="x", renewed=before, transitions=0), since=0) if before else None
    )
    assert evaluate(found, "me", seen_before, later)[0] is standing
