"""`python -m trainyard.preflight --stack NAME`: what the account lacks for a stack, all at once. Changes nothing."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from infra import changes, stack_state
from infra.model import Settings
from trainyard.preflight.account import Account
from trainyard.preflight.command import NOT_ASKED, main, say
from trainyard.preflight.mapping import wanted_of
from trainyard.preflight.run import Report, examine
from trainyard.preflight.wanted import Problem, Unasked

WHO = "who deploys"
FIXED = "settings that are fixed after the first up"


def lines(stack: str, report: Report) -> list[str]:
    """What a person reads: a line per problem and caution, one per check that was not made, one per thing that nobody
    here can tell, and the sum."""
    told = [f"missing: {problem}" for problem in report.problems]
    told += [f"caution: {caution}" for caution in report.cautions]
    told += [f"not checked: {name}: needs {permission}" for name, permission in report.not_checked]
    told += [f"not checked: {name}: {error}" for name, error in report.failed]
    told += [f"not asked: {each}" for each in report.unasked]
    count = len(report.problems)
    if count:
        end = f"{count} thing{'s are' if count > 1 else ' is'} missing"
    else:
        partly = report.not_checked or report.failed
        end = f"nothing is missing{' of what could be checked' if partly else ''}"
    return [*told, f"preflight of stack {stack}: {report.checked} checks, {end}"]


def compare(report: Report, settings: Settings, state: Path | None) -> None:
    """Check the settings against the stack's state, and add the problems to the report."""
    try:
        deployment = stack_state.load(state) if state else stack_state.export(settings.stack)
    except stack_state.StateError as error:
        report.unasked.append(Unasked(key=FIXED, message=f"the stack's state can't be read: {error}"))
        return
    report.checked += 1
    # The checks of the account may have reported the same setting.
    known = {problem.key for problem in report.problems}
    found = changes.find_refused_changes(settings, deployment).items()
    report.problems[:0] = [Problem(key=key, message=message) for key, message in found if key not in known]


def ask(settings: Settings, account: Account, state: Path | None = None) -> int:
    """Examine the account; the exit code is 1 when something is missing, or could not be checked though it may be.

    It is `NOT_ASKED` where AWS did not even say who asks, for which nobody needs a permission.
    """
    report = examine(account, wanted_of(settings), datetime.now(UTC))
    compare(report, settings, state)
    for line in lines(settings.stack, report):
        say(line)
    if any(name == WHO for name, _ in report.failed):
        return NOT_ASKED
    return 1 if report.problems or report.failed else 0


if __name__ == "__main__":
    sys.exit(main("trainyard.preflight", __doc__ or "", ask))
