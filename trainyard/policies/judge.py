"""Judge a stored preview or state: `python -m trainyard.policies.judge FILE` (`-` for standard input).

    pulumi stack export --stack <stack> | python -m trainyard.policies.judge -

Exit code 1: a rule is violated, and no waiver says that it may be. A rule that met an unknown value is `undecided`; it
has to run again on the state after an update.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.policies import reading, waivers
from trainyard.policies.model import Resource, Rule, Stack, Undecided
from trainyard.policies.rules import ALL
from trainyard.policies.waivers import Waiver


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one rule says of one resource."""

    rule: Rule
    resource: Resource
    message: str

    @property
    def key(self) -> tuple[str, str]:
        """Rule and resource."""
        return self.rule.name, self.resource.urn

    def __str__(self) -> str:
        names = ", ".join((self.rule.name, *self.rule.standards))
        return f"{self.resource.type} {self.resource.name}: {self.message} [{names}]"


@dataclass
class Judgement:
    """What the rules say of a stack. `ran` holds the rules that reached a decision, each with its resource."""

    violations: list[Finding] = field(default_factory=list)
    undecided: list[Finding] = field(default_factory=list)
    waived: list[tuple[Finding, Waiver]] = field(default_factory=list)
    ran: set[tuple[str, str]] = field(default_factory=set)


def judge(stack: Stack, given: Sequence[Waiver] = (), rules: Iterable[Rule] = ALL) -> Judgement:
    """Every rule on every resource that it is about."""
    result = Judgement()
    for rule in rules:
        for resource in filter(lambda each: rule.is_about(each.type), stack.resources):
            _judge_one(rule, resource, stack, given, result)
    return result


def _judge_one(
    rule: Rule, resource: Resource, stack: Stack, given: Sequence[Waiver], result: Judgement
) -> None:
    try:
        for message in rule.check(resource, stack):
            finding = Finding(rule=rule, resource=resource, message=message)
            where = (rule.name, resource.type, resource.name, waivers.namespace_of(resource), stack)
            waiver = next((each for each in given if each.matches(*where)), None)
            if waiver:
                result.waived.append((finding, waiver))
            else:
                result.violations.append(finding)
    except Undecided as reason:
        result.undecided.append(Finding(rule=rule, resource=resource, message=str(reason)))
    else:
        result.ran.add((rule.name, resource.urn))


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge one file, or list the rules; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.policies.judge", description=__doc__)
    parser.add_argument("--rules", action="store_true", help="list the rules instead")
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        help="output of `pulumi preview --json` or `pulumi stack export`; - for standard input",
    )
    options = parser.parse_args(arguments)
    if options.rules:
        for rule in ALL:
            print(f"{rule.name}: {rule.says} [{', '.join(rule.standards) or 'our own'}]")
        return 0
    path = options.file
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        result = judge(reading.of_file(text), waivers.load())
    except (OSError, reading.ReadingError, waivers.WaiverError) as error:
        print(f"error: {path}: {error}", file=sys.stderr)
        return 2
    for finding in result.undecided:
        print(f"undecided: {finding}")
    for finding in result.violations:
        print(f"violation: {finding}")
    print(
        f"{len(ALL)} rules: {len(result.violations)} violations, {len(result.waived)} waived,"
        f" {len(result.undecided)} undecided"
    )
    return 1 if result.violations else 0


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough, `head` for instance. Python would write the rest once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)
