"""The resources that rules read, and the definition of a rule. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Final


class Unknown:
    """A value that a preview can't know."""

    def __repr__(self) -> str:
        return "<unknown>"


UNKNOWN: Final = Unknown()


class Undecided(Exception):
    """A rule needs a value that is unknown in a preview. The rule must run again on the state after an update."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} is not known before an update")


def resolved(value: Any, path: str) -> Any:
    """Return the value if no part of it is unknown.

    Raises:
        Undecided: a part of it is unknown.
    """
    if value is UNKNOWN:
        raise Undecided(path)
    if isinstance(value, Mapping):
        for key, entry in value.items():
            resolved(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            resolved(entry, f"{path}[{index}]")
    return value


def at(value: Any, *path: str, default: Any = None) -> Any:
    """Return the value at a path of keys, or `default` if a key on the way is missing.

    Raises:
        Undecided: the value, or one on the way, is unknown.
    """
    if value is UNKNOWN:
        raise Undecided(".".join(path))
    for position, key in enumerate(path, 1):
        if not isinstance(value, Mapping) or value.get(key) is None:
            return default
        value = value[key]
        if value is UNKNOWN:
            raise Undecided(".".join(path[:position]))
    return value


def rows(value: Any) -> list[Any]:
    """Return a list of blocks. Some types have one block or none in place of a list. A block may be unknown."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource of a preview or of a state.

    Attributes:
        type: Pulumi's type token.
        name: The logical name.
        properties: The inputs.
        references: For each property, the URNs of the resources that its value comes from. A preview knows them.
        identity: The provider's id; None in a preview.
    """

    type: str
    name: str
    urn: str
    properties: Mapping[str, Any]
    references: Mapping[str, frozenset[str]] = field(default_factory=dict)
    identity: str | None = None

    def at(self, *path: str, default: Any = None) -> Any:
        """Return the property at a path; see `at`."""
        return at(self.properties, *path, default=default)

    def resolved(self, *path: str, default: Any = None) -> Any:
        """Return the property at a path, with no unknown value in it; see `resolved`."""
        return resolved(self.at(*path, default=default), ".".join(path))

    def has(self, *path: str) -> bool:
        """Return whether the property is set. Its value may be unknown."""
        try:
            return self.at(*path) is not None
        except Undecided:
            return True

    def refers(self, name: str) -> frozenset[str]:
        """Return the URNs of the resources that a property's value comes from."""
        return self.references.get(name, frozenset())


class Stack:
    """All resources of a stack."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.resources = list(resources)
        self._by_urn = {each.urn: each for each in self.resources}

    def of(self, *types: str) -> list[Resource]:
        """Return the resources of these types."""
        return [each for each in self.resources if each.type in types]

    def sources(self, resource: Resource, name: str, type_: str) -> list[Resource]:
        """Return the resources of a type that a property's value comes from."""
        found = (self._by_urn.get(urn) for urn in sorted(resource.refers(name)))
        return [each for each in found if each is not None and each.type == type_]

    def pointing(self, target: Resource, type_: str, name: str) -> list[Resource]:
        """Return the resources of a type whose property refers to `target` or equals its id."""
        result = []
        for each in self.of(type_):
            value = each.properties.get(name)
            if target.urn in each.refers(name) or (isinstance(value, str) and value == target.identity):
                result.append(each)
        return result


Check = Callable[[Resource, Stack], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        id: Its name in waivers and messages.
        text: What must hold: the first line of the docstring of `check`.
        why: The reason for the rule: what checkov, the Kubernetes API server and AWS do not check.
        types: The type tokens of the resources that it checks; empty for every resource.
        check: Yields a line for each violation: the property, its value, and the constraint.
        whole_stack: Whether `check` reads other resources of the stack.
    """

    id: str
    text: str
    why: str
    types: frozenset[str]
    check: Check
    whole_stack: bool

    def applies_to(self, type_: str) -> bool:
        """Return whether the rule checks resources of a type."""
        return not self.types or type_ in self.types


def rule(id_: str, *types: str, why: str) -> Callable[[Check], Rule]:
    """Make a function a `Rule`, for every resource if `types` is empty. `rules.py` finds it in its module.

    A function that reads other resources names its second parameter `stack`; the others name it `_stack`.
    """

    def make(check: Check) -> Rule:
        text = (check.__doc__ or "").strip().splitlines()[0]
        return Rule(
            id=id_,
            text=text,
            why=why,
            types=frozenset(types),
            check=check,
            whole_stack="stack" in signature(check).parameters,
        )

    return make
