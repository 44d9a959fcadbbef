"""Check a stored preview or state: `python -m trainyard.policies.evaluate FILE` (`-` for standard input).

    pulumi stack export --stack <stack> | python -m trainyard.policies.evaluate -

Exit code 1: a resource violates a rule, and no waiver allows it. A rule that needs a value which the preview does not
know is `undecided`; it must run again on the state after an update.

`evaluate()` is also what the policy pack and the tests call.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.policies import snapshot, waivers
from trainyard.policies.model import Resource, Rule, Stack, Undecided
from trainyard.policies.rules import ALL
from trainyard.policies.waivers import Waiver

# What a check raises if a property does not have the form that AWS or Kubernetes define for it.
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one rule for one resource; `path` is the unknown property of an undecided one."""

    rule: Rule
    resource: Resource
    message: str
    path: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The rule's id and the resource's URN."""
        return self.rule.id, self.resource.urn

    def __str__(self) -> str:
        return f"{self.resource.type} {self.resource.name}: {self.message} [{self.rule.id}]"


@dataclass
class Evaluation:
    """The results for a stack. `decided` has rule and resource of each check that was completed."""

    violations: list[Finding] = field(default_factory=list)
    undecided: list[Finding] = field(default_factory=list)
    waived: list[tuple[Finding, Waiver]] = field(default_factory=list)
    decided: set[tuple[str, str]] = field(default_factory=set)


def evaluate(stack: Stack, accepted: Sequence[Waiver] = (), rules: Iterable[Rule] = ALL) -> Evaluation:
    """Check each resource of a stack against each rule for its type, with the waivers that are accepted."""
    result = Evaluation()
    for rule in rules:
        for resource in stack.resources:
            if rule.applies_to(resource.type):
                _evaluate_one(rule, resource, stack, accepted, result)
    return result


def _evaluate_one(
    rule: Rule, resource: Resource, stack: Stack, accepted: Sequence[Waiver], result: Evaluation
) -> None:
    where = (rule.id, resource.type, resource.name, waivers.namespace_of(resource), stack)
    waiver = next((each for each in accepted if each.matches(*where)), None)

    def add(message: str) -> None:
        finding = Finding(rule=rule, resource=resource, message=message)
        if waiver:
            result.waived.append((finding, waiver))
        else:
            result.violations.append(finding)

    try:
        for message in rule.check(resource, stack):
            add(message)
    except Undecided as reason:
        result.undecided.append(Finding(rule=rule, resource=resource, message=str(reason), path=reason.path))
    except MALFORMED as error:
        add(f"a property has another form than AWS or Kubernetes define ({error!r}); it must have that form")
    else:
        result.decided.add((rule.id, resource.urn))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one file, or list the rules; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.policies.evaluate", description=__doc__)
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
            print(f"{rule.id}: {rule.text} Why: {rule.why}.")
        return 0
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text()
        result = evaluate(snapshot.read(text), waivers.load())
    except (OSError, snapshot.SnapshotError, waivers.WaiverError) as error:
        print(f"error: {options.file}: {error}", file=sys.stderr)
        return 2
    for kind, findings in (("undecided", result.undecided), ("violation", result.violations)):
        for finding in findings:
            print(f"{kind}: {finding}")
    print(
        f"{len(ALL)} rules: {len(result.violations)} violations, {len(result.waived)} waived,"
        f" {len(result.undecided)} undecided"
    )
    return 1 if result.violations else 0


if __name__ == "__main__":
    # A reader such as `head` may close the pipe: end as other commands do.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
