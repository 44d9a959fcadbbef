"""`make bench-controller`: the figures of torchrun queues and jobs; a missed one is named and the exit code is 1.

    python -m tests.benchmarks.controller

Nothing is written: docs/benchmarks/controller.md is made by hand from what this prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tests.benchmarks import arrivals, resting, sending, swept
from tests.benchmarks.figures import Figure, Note, verdict
from tests.benchmarks.torchrun_stack import torchrun_stack


def measure() -> Iterator[Figure | Note]:
    """What the sweep of kills found; all else once: on an API server alone, then on a stack of the local cloud."""
    yield from swept.measure()
    yield from resting.measure()
    with torchrun_stack() as bench:
        yield from sending.measure(bench)
        yield from arrivals.measure(bench)


def main() -> int:
    """Measure, print, and name what was missed."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    judged = []
    for row in measure():
        print(row, flush=True)
        if isinstance(row, Figure):
            judged.append(row)
    return verdict(judged)


if __name__ == "__main__":
    raise SystemExit(main())
