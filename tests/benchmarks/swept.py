"""What `make sweep` found where it killed the controller at each of its writes: read from its results, not done again.

A sweep takes hours (docs/faults.md). It may be of an earlier commit than what is measured here, which is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.benchmarks.figures import Figure, Note
from tests.sweeps import history, plan
from tests.sweeps.kills import Result

NAME = "kills at every write"


def measure() -> Iterator[Figure | Note]:
    """The sweep as it is kept in docs/sweeps/controller.json."""
    yield from judged(Result.read("controller"), plan.commit())


def judged(sweep: Result, now: str) -> Iterator[Figure | Note]:
    """No wrong object over all kills; a sweep that is not at its end has shown nothing. `now` is the commit here."""
    commits = dict.fromkeys(each.commit for each in sweep.outcomes)
    told = f"{len(sweep.outcomes)} kills, seen at {', '.join(commits) or 'no commit'}; this is {now}"
    yield Note(name=NAME, told=told)
    left = 0 if sweep.complete else 1
    yield Figure(name=f"{NAME}: sweeps not at their end", value=left, limit=0, unit="", digits=0)
    for each in history.figures(wrong for outcome in sweep.outcomes for wrong in outcome.wrongs):
        yield replace(each, name=f"{NAME}: {each.name}")
