"""`make policy`: check every shipped stack file, or the named ones, with our rules and with checkov.

    python -m tests.integration.policy [STACK ...]            what the stack files would create
    python -m tests.integration.policy --state FILE [STACK]   what a stack has (`pulumi stack export`)

Prints violations and undecided rules. Exit code 1: a violation without a waiver, or a waiver of
`trainyard/policies/waivers.yaml` that matches nothing (reported only if every stack was checked).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from local.guard import ForeignCloudError
from local.tools import ToolError
from tests.integration.policy import checkov
from tests.integration.policy.charts import ChartError
from tests.integration.policy.checkov import CheckovError, Failure, Verdict
from tests.integration.policy.environments import EnvironmentFailed
from tests.integration.policy.previews import charted, preview
from tests.integration.policy.terraform_plan import PlanError
from tests.shipped import shipped
from trainyard.cli.engine import EngineError
from trainyard.policies import snapshot, waivers
from trainyard.policies.evaluate import Evaluation, evaluate
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL
from trainyard.policies.waivers import Waiver, WaiverError
from trainyard.stack_files import StackFileError

EXPECTED = (
    ChartError,
    CheckovError,
    EngineError,
    EnvironmentFailed,
    ForeignCloudError,
    OSError,
    PlanError,
    StackFileError,
    ToolError,
    WaiverError,
    snapshot.SnapshotError,
)


class Report:
    """The violations so far, and the waivers that matched."""

    def __init__(self, accepted: Sequence[Waiver]) -> None:
        self.accepted = accepted
        self.used: set[Waiver] = set()
        self.wrong = 0

    def stack(self, name: str, stack: Stack, verbose: bool) -> None:
        """Check one stack with our rules and with checkov."""
        started = time.monotonic()
        own = evaluate(stack, self.accepted)
        self.used |= {waiver for _, waiver in own.waived}
        with tempfile.TemporaryDirectory() as folder:
            other = checkov.check_stack(stack, Path(folder))
        failures = self.checkov(other)
        self.wrong += len(own.violations)
        for finding in own.violations:
            print(f"{name}: violation: {finding}")
        for failure in failures:
            print(f"{name}: checkov: {failure}")
        self._print_undecided(name, own, verbose)
        print(
            f"{name}: {len(stack.resources)} resources, {len(ALL)} rules: {len(own.violations)} violations,"
            f" {len(own.waived)} waived, {len(own.undecided)} undecided; checkov: {len(failures)} failed,"
            f" {len(other.failures) - len(failures)} waived, {other.passed} passed"
            f" ({time.monotonic() - started:.0f} s)",
            flush=True,
        )

    def checkov(self, verdict: Verdict) -> list[Failure]:
        """Count the failures of checkov; return those without a waiver."""
        self.used |= verdict.used(self.accepted)
        failures = verdict.unwaived(self.accepted)
        self.wrong += len(failures)
        return failures

    def unused(self) -> None:
        """Report the waivers that match nothing."""
        for waiver in self.accepted:
            if waiver not in self.used:
                print(f"{waivers.FILE.name}: {waiver} matches nothing. Remove it.")
                self.wrong += 1

    def _print_undecided(self, name: str, own: Evaluation, verbose: bool) -> None:
        if verbose:
            for finding in own.undecided:
                print(f"{name}: undecided: {finding}")
            return
        for rule, count in sorted(Counter(each.rule.id for each in own.undecided).items()):
            print(f"{name}: undecided before an update: {rule} ({count} resources)")


def _stored(name: str, file: Path) -> Stack:
    """Return the resources of a stored state or preview. Without access to a chart, all but its objects."""
    stack = snapshot.read(file.read_text())
    try:
        return charted(stack)
    except ChartError as error:
        print(f"{name}: objects of charts are not checked: {error}")
        return stack


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.policy", description=__doc__)
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="names of stack files (default: all)")
    parser.add_argument("--state", metavar="FILE", help="check a stored state instead of a preview")
    parser.add_argument("--verbose", action="store_true", help="name each undecided rule's resources")
    options = parser.parse_args(arguments)
    try:
        report = Report(waivers.load())
        if options.state:
            name = options.stacks[0] if options.stacks else Path(options.state).stem
            report.stack(name, _stored(name, Path(options.state)), options.verbose)
            return 1 if report.wrong else 0
        for name in options.stacks or shipped():
            report.stack(name, preview(name), options.verbose)
        if not options.stacks:
            with tempfile.TemporaryDirectory() as folder:
                dockerfiles = checkov.check_dockerfiles(Path(folder))
            for failure in report.checkov(dockerfiles):
                print(f"checkov: {failure}")
            report.unused()
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
