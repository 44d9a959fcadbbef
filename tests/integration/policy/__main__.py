"""`make policy`: judge every shipped stack file, or the given ones, by our rules and by checkov.

    python -m tests.integration.policy [STACK ...]            what the stack files would make
    python -m tests.integration.policy --state FILE [STACK]   what a stack has (`pulumi stack export`)

Prints violations and undecided rules. Exit code 1: something is violated that no waiver is about, or a waiver of
`trainyard/policies/waivers.yaml` is about nothing any more (told only when every stack was judged).
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
from trainyard.policies import reading, waivers
from trainyard.policies.judge import Judgement, judge
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
    reading.ReadingError,
)


class Trial:
    """What was judged so far, and which waivers were about something."""

    def __init__(self, given: Sequence[Waiver]) -> None:
        self.given = given
        self.used: set[Waiver] = set()
        self.wrong = 0

    def stack(self, name: str, stack: Stack, verbose: bool) -> None:
        """Judge one stack, by both judges."""
        started = time.monotonic()
        own = judge(stack, self.given)
        self.used |= {waiver for _, waiver in own.waived}
        with tempfile.TemporaryDirectory() as folder:
            other = checkov.check_stack(stack, Path(folder))
        failures = self.other(other)
        self.wrong += len(own.violations)
        for finding in own.violations:
            print(f"{name}: violation: {finding}")
        for failure in failures:
            print(f"{name}: checkov: {failure}")
        self._undecided(name, own, verbose)
        print(
            f"{name}: {len(stack.resources)} resources, {len(ALL)} rules: {len(own.violations)} violations,"
            f" {len(own.waived)} waived, {len(own.undecided)} undecided; checkov: {len(failures)} failed,"
            f" {len(other.failures) - len(failures)} waived, {other.passed} passed"
            f" ({time.monotonic() - started:.0f} s)",
            flush=True,
        )

    def other(self, verdict: Verdict) -> list[Failure]:
        """Count what checkov says; returns what no waiver is about."""
        self.used |= verdict.used(self.given)
        failures = verdict.unwaived(self.given)
        self.wrong += len(failures)
        return failures

    def unused(self) -> None:
        """Tell the waivers that are about nothing."""
        for waiver in self.given:
            if waiver not in self.used:
                print(f"waiver about nothing: {waiver}; take it out of {waivers.FILE.name}")
                self.wrong += 1

    def _undecided(self, name: str, own: Judgement, verbose: bool) -> None:
        if verbose:
            for finding in own.undecided:
                print(f"{name}: undecided: {finding}")
            return
        for rule, count in sorted(Counter(each.rule.name for each in own.undecided).items()):
            print(f"{name}: undecided before an update: {rule} ({count} resources)")


def _stored(name: str, file: Path) -> Stack:
    """What a stored state or preview has. A chart that is out of reach here is told, and the rest judged."""
    stack = reading.of_file(file.read_text())
    try:
        return charted(stack)
    except ChartError as error:
        print(f"{name}: objects of charts are not judged: {error}")
        return stack


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.policy", description=__doc__)
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="names of stack files (default: all)")
    parser.add_argument("--state", metavar="FILE", help="judge a stored state instead of a preview")
    parser.add_argument("--verbose", action="store_true", help="name each undecided rule's resources")
    options = parser.parse_args(arguments)
    try:
        trial = Trial(waivers.load())
        if options.state:
            name = options.stacks[0] if options.stacks else Path(options.state).stem
            trial.stack(name, _stored(name, Path(options.state)), options.verbose)
            return 1 if trial.wrong else 0
        for name in options.stacks or shipped():
            trial.stack(name, preview(name), options.verbose)
        if not options.stacks:
            with tempfile.TemporaryDirectory() as folder:
                dockerfiles = checkov.check_dockerfiles(Path(folder))
            for failure in trial.other(dockerfiles):
                print(f"checkov: {failure}")
            trial.unused()
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if trial.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
