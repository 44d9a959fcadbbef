"""`python -m tests.integration.sweeps [--stack NAME ...]`: kill `up` and `destroy` at random resources.

Each interruption is followed by one `make down`, after which nothing may be left. The results stand under docs/sweeps;
a sweep that was stopped goes on where it was, also when the commit has moved on: each outcome names its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.integration.sweeps.interrupt import interrupt
from tests.integration.sweeps.plan import Result
from tests.previews import preview
from tests.seed import SEED
from tests.shipped import shipped
from tests.world import world

COUNT = 20


def main() -> int:
    """Sweep; the exit code is 1 when an interruption left something."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.sweeps", description=__doc__)
    parser.add_argument("--stack", action="append", choices=shipped())
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    given = os.environ.get(SEED)
    bad = 0
    for stack in arguments.stack or shipped():
        bad += sweep(stack, arguments.count, int(given) if given else None)
    return 1 if bad else 0


def sweep(stack: str, count: int, seed: int | None) -> int:
    """All interruptions of one stack that have not been tried; returns how many left something."""
    result = Result.resume(stack, seed, count)
    resources = sum(bool(step["newState"].get("custom")) for step in preview(stack)["steps"])
    todo = result.todo(resources)
    print(f"stack {stack}: seed {result.seed}, {len(todo)} of {count} interruptions to try", flush=True)
    while todo:
        with (
            tempfile.TemporaryDirectory(prefix="trainyard-sweep-") as directory,
            world(Path(directory) / "home", stack) as made,
        ):
            good = True
            while todo and good:  # after a wrong outcome another cloud: it must not spoil the next
                each = todo.pop(0)
                outcome = interrupt(made, each)
                good = outcome.good
                result.add(outcome)
                left = f"LEFT (down {outcome.down}): {', '.join(outcome.left)}"
                ending = "nothing is left" if good else left
                print(f"stack {stack}: {each} (reached {outcome.reached}): {ending}", flush=True)
    return sum(not each.good for each in result.outcomes)


if __name__ == "__main__":
    sys.exit(main())
