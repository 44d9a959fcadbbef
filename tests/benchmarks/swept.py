"""What `make sweep` found where it killed the controller at each of its writes: read from its results, not done again.

A sweep takes an hour (docs/faults.md). It may be of an earlier commit than what is measured here, which is told, with
how much of the controller is another since.
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
_CONTROLLER = ("trainyard/operator", "launcher", "trainyard/k8s")


def measure() -> Iterator[Figure | Note]:
    """The sweep as it is kept in docs/sweeps/controller.json."""
    sweep = Result.read("controller")
    yield from judged(sweep, plan.commit(), _changed({each.commit for each in sweep.outcomes}))


def _changed(commits: set[str]) -> set[str]:
    """Files of the controller that are others here than at one of these. Raises CalledProcessError for an unknown."""
    words = ("git", "diff", "--name-only")
    return {
        file
        for commit in commits
        for file in subprocess.run(
            [*words, commit.removesuffix("-changed"), "--", *_CONTROLLER],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    }


def judged(sweep: Result, now: str, changed: set[str]) -> Iterator[Figure | Note]:
    """No wrong object over all kills; a sweep that is not at its end has shown nothing.

    `now` is the commit here, `changed` what is another in it of the controller's files.
    """
    commits = dict.fromkeys(each.commit for each in sweep.outcomes)
    told = f"{len(sweep.outcomes)} kills, seen at {', '.join(commits) or 'no commit'}; this is {now}"
    told += (
        f", with {len(changed)} of the controller's files changed since: {', '.join(sorted(changed))}"
        if changed
        else ""
    )
    yield Note(name=NAME, told=told)
    left = 0 if sweep.complete else 1
    yield Figure(name=f"{NAME}: sweeps not at their end", value=left, limit=0, unit="", digits=0)
    for each in history.figures(wrong for outcome in sweep.outcomes for wrong in outcome.wrongs):
        yield replace(each, name=f"{NAME}: {each.name}")
