"""The rules as a Pulumi policy pack; `__main__.py` starts it. It needs the SDK of policies (`requirements.txt`).

A rule that looks at one resource stops an update before that resource is made; one that looks at the whole stack
stops a preview. What a preview can't decide is told by the SDK ("can't run policy"); the same rules run again during
the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyPack,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, UnknownValueError

from trainyard.policies import waivers
from trainyard.policies.model import UNKNOWN, Resource, Rule, Stack, Undecided
from trainyard.policies.reading import plain
from trainyard.policies.rules import ALL
from trainyard.policies.waivers import Waiver

Report = Callable[..., None]


def opened(value: Any) -> Any:
    """A property of the SDK's as rules read it. The SDK's mappings raise where a value is not known."""
    if isinstance(value, Mapping):
        return {key: _entry(value, key) for key in value if not str(key).startswith("__")}
    if isinstance(value, str | bool | int | float) or value is None:
        return plain(value)
    return [_entry(value, index) for index in range(len(value))]


def _entry(container: Any, key: Any) -> Any:
    try:
        return opened(container[key])
    except UnknownValueError:
        return UNKNOWN


def told(rule: Rule, resource: Resource, stack: Stack, given: list[Waiver], report: Report) -> None:
    """Report what a rule says of a resource.

    Raises:
        UnknownValueError: the rule met an unknown value; the SDK says so.
    """
    try:
        where = (rule.name, resource.type, resource.name, waivers.namespace_of(resource), stack)
        for message in rule.check(resource, stack):
            if not any(each.matches(*where) for each in given):
                report(f"{resource.name}: {message}", resource.urn)
    except Undecided as reason:
        raise UnknownValueError(UNKNOWN_STRING_VALUE, [reason.path]) from reason


def policy_of(rule: Rule, given: list[Waiver]) -> ResourceValidationPolicy | StackValidationPolicy:
    """One rule as the SDK has it."""

    def of_resource(args: ResourceValidationArgs, report: Report) -> None:
        if rule.is_about(args.resource_type):
            resource = Resource(
                type=args.resource_type, name=args.name, urn=args.urn, properties=opened(args.props)
            )
            told(rule, resource, Stack([resource]), given, report)

    def of_stack(args: StackValidationArgs, report: Report) -> None:
        stack = Stack(
            Resource(
                type=each.resource_type,
                name=each.name,
                urn=each.urn,
                properties=opened(each.props),
                references={
                    name: frozenset(source.urn for source in sources)
                    for name, sources in each.property_dependencies.items()
                },
            )
            for each in args.resources
        )
        for resource in stack.resources:
            if rule.is_about(resource.type):
                told(rule, resource, stack, given, report)

    # A waiver that counts beside another resource needs to see that one.
    whole_stack = rule.whole_stack or any(each.beside for each in given if each.rule == rule.name)
    kind, validate = (
        (StackValidationPolicy, of_stack) if whole_stack else (ResourceValidationPolicy, of_resource)
    )
    described = f"{rule.says} ({', '.join(rule.standards)})" if rule.standards else rule.says
    return kind(
        name=rule.name, description=described, validate=validate, enforcement_level=EnforcementLevel.MANDATORY
    )


def main() -> None:
    """Serve the pack; never returns."""
    given = waivers.load()
    PolicyPack(
        name="trainyard",
        enforcement_level=EnforcementLevel.MANDATORY,
        policies=[policy_of(rule, given) for rule in ALL],
    )
