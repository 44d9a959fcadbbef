"""`python -m trainyard.preflight.leftovers --stack NAME`: list what a destroyed stack left. Deletes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from infra.settings import Settings
from trainyard.preflight.aws import Aws
from trainyard.preflight.command import main, report_line
from trainyard.preflight.leftovers.search import search


def run(settings: Settings, aws: Aws, _state: Path | None = None) -> int:
    """Search the account and print the result. Return 1 if something is left or a kind could not be searched."""
    result = search(settings, aws)
    for line in result.lines(settings):
        report_line(line)
    left, _ = result.sorted(settings)
    return 1 if left or result.denied or result.failed else 0


if __name__ == "__main__":
    # A reservation of a destroyed stack may have ended.
    sys.exit(main("trainyard.preflight.leftovers", __doc__ or "", run, takes_ended=True))
