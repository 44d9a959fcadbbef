"""Several ways of doing the same, each measured once in every round, in an order drawn anew for each round.

Whatever drifts over minutes, or is left behind by the one that came before, meets all of them alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median

# Of so many values a median is taken at least.
LEAST = 7


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0) -> dict[str, list[float]]:
    """What each way returned in each round, by name. The order is the same in all processes with this seed."""
    order = random.Random(seed)  # noqa: S311 - it is the order of measurements
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            found[name].append(ways[name]())
    return found


def middle(values: Sequence[float]) -> float:
    """The median of at least LEAST values. Raises ValueError for fewer."""
    if len(values) < LEAST:
        raise ValueError(f"a median of {len(values)} values; expected at least {LEAST}")
    return median(values)
