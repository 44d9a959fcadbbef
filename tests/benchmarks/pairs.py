"""Two ways of doing the same, measured in turns: the ratio of each pair, and how sure its median is.

Machines drift over minutes; what was measured within the same second shares the drift, so that the ratio of a pair
tells what the two medians apart from each other would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 10_000


@dataclass(frozen=True)
class Interval:
    """The median of ratios, and the bounds that hold 95 % of the medians of resamples."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def paired_ratio(ours: Sequence[float], others: Sequence[float], seed: int = 0) -> Interval:
    """Ours over the other's, pair by pair, with the bootstrap's 95 % interval of the median.

    Seconds of the same moments, at least two pairs (Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979).
    Raises ValueError when there are fewer, or not as many of one as of the other.
    """
    if len(ours) != len(others) or len(ours) < 2:
        raise ValueError(f"{len(ours)} and {len(others)} measurements make no pairs")
    ratios = np.asarray(ours) / np.asarray(others)
    drawn = np.random.default_rng(seed).choice(ratios, (DRAWS, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return Interval(float(low), float(np.median(ratios)), float(high))
