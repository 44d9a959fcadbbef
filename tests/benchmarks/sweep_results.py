"""Results of `make sweep`, which kills the operator at each of its writes. Entry point: `measure()`.

A sweep takes an hour (docs/faults.md), so its stored results are read. They may be of an earlier commit; a note names
it, and some files of the operator that have changed since.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

from tests.benchmarks.figures import Figure, Note
from tests.integration.sweeps import history, plan
from tests.integration.sweeps.kills import Result
from trainyard.cli.engine import ROOT

NAME = "kills at every write"
NAMED = 3  # of the changed files
_OPERATOR = ("trainyard/operator", "launcher", "trainyard/k8s")


def measure() -> Iterator[Figure | Note]:
    """Evaluate the sweep in docs/sweeps/controller.json."""
    sweep = Result.read("controller")
    yield from evaluate(sweep, plan.commit(), _changed({each.commit for each in sweep.outcomes}))


def _changed(commits: set[str]) -> set[str]:
    """Return the operator's files that differ from one of these commits. Raises CalledProcessError."""
    command = ("git", "diff", "--name-only")
    return {
        file
        for commit in commits
        for file in subprocess.run(
            [*command, commit.removesuffix("-changed"), "--", *_OPERATOR],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    }


def evaluate(sweep: Result, now: str, changed: set[str]) -> Iterator[Figure | Note]:
    """Count the wrong objects after all kills; an incomplete sweep is a miss.

    Args:
        now: The commit of this checkout.
        changed: The operator's files that have changed since the sweep.
    """
    commits = dict.fromkeys(each.commit for each in sweep.outcomes)
    text = f"{len(sweep.outcomes)} kills at commits {', '.join(commits) or 'none'}; this is {now}"
    if changed:
        names = ", ".join(sorted(changed)[:NAMED])
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        text += f"; files of the operator changed since: {names}{more}"
    yield Note(name=NAME, text=text)
    incomplete = 0 if sweep.complete else 1
    yield Figure(name=f"{NAME}: incomplete sweeps", value=incomplete, limit=0, unit="", digits=0)
    for each in history.figures(wrong for outcome in sweep.outcomes for wrong in outcome.wrongs):
        yield replace(each, name=f"{NAME}: {each.name}")
