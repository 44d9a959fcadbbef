"""`python -m trainyard.preflight --stack NAME`: list everything that the account lacks for a stack. Changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from infra import changes, stack_state
from infra.settings import Settings
from trainyard.preflight.aws import Aws
from trainyard.preflight.checks import CALLER, Report, examine
from trainyard.preflight.command import NOT_ASKED, main, report_line
from trainyard.preflight.findings import SKIPPED, Finding

FIXED = "settings that are fixed after the first up"


def check_state(report: Report, settings: Settings, state: Path | None) -> None:
    """Compare the settings with the stack's state, and add the findings to the report."""
    try:
        deployment = stack_state.load(state) if state else stack_state.export(settings.stack)
    except stack_state.StateError as error:
        report.findings.append(Finding(FIXED, f"the stack's state can't be read: {error}", SKIPPED))
        return
    report.checked += 1
    # The account's checks may have found the same setting.
    known = {each.key for each in report.of()}
    refused = changes.find_refused_changes(settings, deployment).items()
    report.findings[:0] = [Finding(key, message) for key, message in refused if key not in known]


def run(settings: Settings, aws: Aws, state: Path | None = None) -> int:
    """Make all checks and print the result.

    Returns:
        1 if something is missing, or AWS did not answer a check; `NOT_ASKED` if AWS did not even tell who calls, which
        needs no permission.
    """
    report = examine(settings, aws)
    check_state(report, settings, state)
    for line in report.lines(settings.stack):
        report_line(line)
    if any(name == CALLER for name, _ in report.failed):
        return NOT_ASKED
    return 1 if report.of() or report.failed else 0


if __name__ == "__main__":
    sys.exit(main("trainyard.preflight", __doc__ or "", run))
