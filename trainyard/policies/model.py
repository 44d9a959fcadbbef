"""What a rule is and what it looks at. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class Unknown:
    """A value that a preview can't know."""

    def __repr__(self) -> str:
        return "<unknown>"


UNKNOWN: Final = Unknown()


class Undecided(Exception):
    """A rule met a value that is not known yet; it has to run again on the state after an update."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} is not known before an update")


def known(value: Any, path: str) -> Any:
    """The value, which holds nothing unknown.

    Raises:
        Undecided: it does.
    """
    if value is UNKNOWN:
        raise Undecided(path)
    if isinstance(value, Mapping):
        for key, entry in value.items():
            known(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            known(entry, f"{path}[{index}]")
    return value


def at(value: Any, *path: str, default: Any = None) -> Any:
    """What lies at a path of keys; `default` where it, or anything on the way, is missing.

    Raises:
        Undecided: it, or something on the way, is not known.
    """
    for position, key in enumerate(path, 1):
        if not isinstance(value, Mapping) or value.get(key) is None:
            return default
        value = value[key]
        if value is UNKNOWN:
            raise Undecided(".".join(path[:position]))
    return value


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource as it will be, or is: its type token, logical name and inputs.

    `references` maps a property to the URNs of the resources that its value comes from, which also a preview knows.
    `identity` is the provider's id, None in a preview.
    """

    type: str
    name: str
    urn: str
    properties: Mapping[str, Any]
    references: Mapping[str, frozenset[str]] = field(default_factory=dict)
    identity: str | None = None

    def at(self, *path: str, default: Any = None) -> Any:
        """As `at`, of the properties."""
        return at(self.properties, *path, default=default)

    def known(self, *path: str, default: Any = None) -> Any:
        """As `at`, with nothing unknown anywhere in it."""
        return known(self.at(*path, default=default), ".".join(path))

    def has(self, *path: str) -> bool:
        """Whether the property is set, be its value known or not."""
        try:
            return self.at(*path) is not None
        except Undecided:
            return True

    def refers(self, name: str) -> frozenset[str]:
        """URNs of the resources that the property's value comes from."""
        return self.references.get(name, frozenset())


class Stack:
    """All resources of one stack."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.resources = list(resources)
        self._by_urn = {each.urn: each for each in self.resources}

    def of(self, *types: str) -> list[Resource]:
        """The resources of these types."""
        return [each for each in self.resources if each.type in types]

    def sources(self, resource: Resource, name: str, type_: str) -> list[Resource]:
        """The resources of a type that a property's value comes from."""
        found = (self._by_urn.get(urn) for urn in sorted(resource.refers(name)))
        return [each for each in found if each is not None and each.type == type_]

    def pointing(self, target: Resource, type_: str, name: str) -> list[Resource]:
        """The resources of a type whose property comes from `target`, or says its id."""
        result = []
        for each in self.of(type_):
            value = each.properties.get(name)
            if target.urn in each.refers(name) or (isinstance(value, str) and value == target.identity):
                result.append(each)
        return result


Check = Callable[[Resource, Stack], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule. `check` yields a line per violation: the property, what is wrong, and what would be right.

    `standards` are its names elsewhere (checkov, trivy, the CIS benchmark of EKS). A rule with `whole_stack` looks
    at other resources, too. One of `every_type` names no `types`.
    """

    name: str
    standards: tuple[str, ...]
    says: str
    types: frozenset[str]
    check: Check
    whole_stack: bool = False
    every_type: bool = False

    def is_about(self, type_: str) -> bool:
        """Whether it judges resources of a type."""
        return self.every_type or type_ in self.types


class Rules:
    """The rules of one area, in the order in which they are written."""

    def __init__(self) -> None:
        self.all: list[Rule] = []

    def rule(
        self,
        name: str,
        *standards: str,
        types: Iterable[str] = (),
        whole_stack: bool = False,
        every_type: bool = False,
    ) -> Callable[[Check], Check]:
        """Make a function a rule; its docstring's first line is what the rule says."""

        def add(check: Check) -> Check:
            says = (check.__doc__ or "").strip().splitlines()[0]
            self.all.append(
                Rule(
                    name=name,
                    standards=standards,
                    says=says,
                    types=frozenset(types),
                    check=check,
                    whole_stack=whole_stack,
                    every_type=every_type,
                )
            )
            return check

        return add


def rows(value: Any) -> list[Any]:
    """A list of blocks; a single block, which some types have instead, counts as a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
