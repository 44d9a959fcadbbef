"""Measure alternatives in rounds, each once in every round, in a random order. Entry point: `in_turns()`.

So slow changes of the machine, and what a measurement leaves behind, affect all alternatives alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median

# The least number of values of a median.
LEAST = 7


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0) -> dict[str, list[float]]:
    """Return the values of each alternative by its name. A seed gives the same order in all processes."""
    order = random.Random(seed)  # noqa: S311 - it is the order of measurements
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            found[name].append(ways[name]())
    return found


def middle(values: Sequence[float]) -> float:
    """Return the median of at least LEAST values. Raises ValueError for fewer."""
    if len(values) < LEAST:
        raise ValueError(f"a median of {len(values)} values; expected at least {LEAST}")
    return median(values)
