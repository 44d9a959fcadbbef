"""The rules as a Pulumi policy pack; `__main__.py` starts it. It needs the SDK of `requirements.txt`.

A rule about one resource stops an update before the resource is created; one about the whole stack stops a preview. The
SDK reports rules that a preview can't decide ("can't run policy"); they run again during the update.
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
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import UNKNOWN, Resource, Rule, Stack
from trainyard.policies.rules import ALL
from trainyard.policies.snapshot import plain
from trainyard.policies.waivers import Waiver


def unwrap(value: Any) -> Any:
    """Return a property of the SDK in the form that rules read. The SDK's containers raise if a value is unknown."""
    if isinstance(value, Mapping):
        return {key: _entry(value, key) for key in value if not str(key).startswith("__")}
    if isinstance(value, str | bool | int | float) or value is None:
        return plain(value)
    return [_entry(value, index) for index in range(len(value))]


def _entry(container: Any, key: Any) -> Any:
    try:
        return unwrap(container[key])
    except UnknownValueError:
        return UNKNOWN


def policy_of(rule: Rule, accepted: list[Waiver]) -> ResourceValidationPolicy | StackValidationPolicy:
    """Return a rule as a policy of the SDK."""

    def report_all(stack: Stack, report: Callable[..., None]) -> None:
        result = evaluate(stack, accepted, [rule])
        for each in result.violations:
            report(f"{each.resource.name}: {each.message}", each.resource.urn)
        if result.undecided:
            raise UnknownValueError(UNKNOWN_STRING_VALUE, [result.undecided[0].path])

    def of_resource(args: ResourceValidationArgs, report: Callable[..., None]) -> None:
        resource = Resource(
            type=args.resource_type, name=args.name, urn=args.urn, properties=unwrap(args.props)
        )
        report_all(Stack([resource]), report)

    def of_stack(args: StackValidationArgs, report: Callable[..., None]) -> None:
        resources = (
            Resource(
                type=each.resource_type,
                name=each.name,
                urn=each.urn,
                properties=unwrap(each.props),
                references={
                    name: frozenset(source.urn for source in sources)
                    for name, sources in each.property_dependencies.items()
                },
            )
            for each in args.resources
        )
        report_all(Stack(resources), report)

    # A waiver with `beside` depends on other resources.
    whole_stack = rule.whole_stack or any(each.beside for each in accepted if each.rule == rule.id)
    make, validate = (
        (StackValidationPolicy, of_stack) if whole_stack else (ResourceValidationPolicy, of_resource)
    )
    return make(
        name=rule.id, description=rule.text, validate=validate, enforcement_level=EnforcementLevel.MANDATORY
    )


def main() -> None:
    """Serve the pack; never returns."""
    accepted = waivers.load()
    PolicyPack(
        name="trainyard",
        enforcement_level=EnforcementLevel.MANDATORY,
        policies=[policy_of(rule, accepted) for rule in ALL],
    )
