"""Measured figures with their limits, notes without a limit, and the exit code for all."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from local.tools import ToolError


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure, its limit and its unit; `digits` after the point are printed."""

    name: str
    value: float
    limit: float
    unit: str
    digits: int = 1

    @property
    def missed(self) -> bool:
        return not self.value <= self.limit  # what is no number is missed, too

    def __str__(self) -> str:
        verdict = "MISSED" if self.missed else "ok"
        measured = f"{self.name:<52} {self.value:8.{self.digits}f} {self.unit:<4}"
        return f"{measured} limit {self.limit:g} {self.unit:<4} {verdict}"


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that has no limit: a baseline's figure, or what a judged one is made of."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name:<52} {self.text}"


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest of the values that at least `part` of them (above 0, up to 1) do not exceed."""
    if not values:
        raise ValueError("no values: no percentile")
    return sorted(values)[max(1, math.ceil(part * len(values))) - 1]


def ratio(ours: float, baseline: float) -> float:
    """Ours over the baseline's; nothing over nothing is 1, something over nothing has no bound."""
    if baseline > 0:
        return ours / baseline
    return math.inf if ours > 0 else 1.0


def verdict(rows: Iterable[Figure | Note]) -> int:
    """Names the missed figures on standard error; the exit code."""
    missed = [row.name for row in rows if isinstance(row, Figure) and row.missed]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def run(
    description: str | None,
    rows: Mapping[str, str],
    measure: Callable[[Collection[str]], Iterator[Figure | Note]],
    default: Sequence[str] = (),
) -> int:
    """Measure the rows of the command line, print their figures, and name the missed ones. Return the exit code.

    `rows` has a description for each row. Without a row on the command line, those of `default` are measured, or all.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:<9} {what}" for name, what in rows.items()),
    )
    usual = list(default or rows)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"some of {', '.join(rows)} (default: {', '.join(usual)})"
    )
    chosen = parser.parse_args().rows or usual
    unknown = [each for each in chosen if each not in rows]
    if unknown:
        parser.error(f"ROW: unknown value {', '.join(unknown)}. It must be one of {', '.join(rows)}.")
    measured = []
    try:
        for row in measure(chosen):
            print(row, flush=True)
            measured.append(row)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return verdict(measured)
