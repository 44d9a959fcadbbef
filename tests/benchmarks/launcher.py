"""`make bench-launcher`: the launcher's figures beside two baselines; a missed one is named and the exit code is 1.

    python -m tests.benchmarks.launcher

Everything runs on this machine against the API server and the worlds of the unit tests. Nothing is written:
docs/benchmarks/launcher.md is made by hand from what this prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tests.benchmarks import decisions, footprint, scores, waits
from tests.benchmarks.figures import Figure, Note, verdict


def measure() -> Iterator[Figure | Note]:
    """Everything once; what is timed goes first, alone."""
    yield from decisions.measure()
    yield from waits.measure()
    yield from footprint.measure()
    yield from scores.measure()


def main() -> int:
    """Measure, print, and name what was missed."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows = []
    for row in measure():
        print(row, flush=True)
        rows.append(row)
    judged = [row for row in rows if isinstance(row, Figure)]
    print("\nall figures:\n" + "\n".join(map(str, judged)))
    return verdict(judged)


if __name__ == "__main__":
    raise SystemExit(main())
