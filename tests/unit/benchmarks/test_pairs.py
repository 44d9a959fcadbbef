"""The interval of a paired ratio: exact where nothing varies, wide where much does, blind to the machine's drift."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.pairs import paired_ratio


def test_a_ratio_that_never_changes_has_no_width_however_the_machine_drifts() -> None:
    drift = np.linspace(1.0, 5.0, 30)
    found = paired_ratio(list(1.25 * drift), list(drift))
    assert (found.low, found.median, found.high) == pytest.approx((1.25, 1.25, 1.25))


@pytest.mark.long
def test_the_interval_holds_the_truth_and_narrows_with_more_pairs() -> None:
    noise = np.random.default_rng(1)
    widths = []
    for pairs in (30, 480):
        ours = 1.1 * noise.normal(1.0, 0.05, pairs)
        found = paired_ratio(list(ours), list(noise.normal(1.0, 0.05, pairs)))
        assert found.low < 1.1 < found.high
        assert found.low < found.median < found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize(("ours", "others"), [([1.0], [1.0]), ([], []), ([1.0, 2.0], [1.0])])
def test_what_makes_no_pairs_is_refused(ours: list[float], others: list[float]) -> None:
    with pytest.raises(ValueError, match="make no pairs"):
        paired_ratio(ours, others)
