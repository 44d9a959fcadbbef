"""Waivers: violations of one rule that are accepted for some resources, each with reason and date (`waivers.yaml`).

The rules are ours or checkov's.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

from trainyard.policies.model import Resource, Stack

FILE: Final = Path(__file__).with_name("waivers.yaml")
REQUIRED: Final = frozenset({"rule", "type", "name", "reason", "since"})
OPTIONAL: Final = frozenset({"namespace", "beside"})


class WaiverError(Exception):
    """The file of waivers is invalid."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Resources by patterns of their type token and logical name."""

    type: str
    name: str

    def includes(self, type_: str, name: str) -> bool:
        """Return whether a resource matches."""
        return fnmatchcase(type_, self.type) and fnmatchcase(name, self.name)


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """One waiver.

    Attributes:
        resources: The resources that it applies to.
        since: The date when it was written.
        namespace: If set, the resources must be in this Kubernetes namespace.
        beside: If not empty, the waiver counts only in a stack that has one of these resources.
    """

    rule: str
    resources: Pattern
    reason: str
    since: datetime.date
    namespace: str | None
    beside: tuple[Pattern, ...]

    def matches(self, rule: str, type_: str, name: str, namespace: str | None, stack: Stack) -> bool:
        """Return whether it applies to a rule and a resource of a stack. `namespace` is None outside Kubernetes."""
        return (
            rule == self.rule
            and self.resources.includes(type_, name)
            and self.namespace in (None, namespace)
            and (not self.beside or any(self._is_beside(each) for each in stack.resources))
        )

    def _is_beside(self, resource: Resource) -> bool:
        return any(pattern.includes(resource.type, resource.name) for pattern in self.beside)

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.rule} on {self.resources.type} {self.resources.name}{where} (since {self.since})"


def namespace_of(resource: Resource) -> str | None:
    """Return the namespace of an object; None if it has none or it is unknown."""
    metadata = resource.properties.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) else None


def read(text: str) -> list[Waiver]:
    """Return the waivers of a file.

    Raises:
        WaiverError: a waiver lacks a key, has an unknown one, or a value of the wrong type.
    """
    return [_waiver(f"waivers[{index}]", each) for index, each in enumerate(yaml.safe_load(text) or [])]


def load() -> list[Waiver]:
    """Return the waivers of the project; Raises as `read`."""
    return read(FILE.read_text())


def _waiver(place: str, entry: Any) -> Waiver:
    _check_keys(place, entry, REQUIRED, OPTIONAL)
    if not isinstance(entry["since"], datetime.date):
        raise WaiverError(f"{place}.since is {entry['since']!r}; it must be a date such as 2026-11-21")
    beside = entry.get("beside", [])
    if not isinstance(beside, list):
        raise WaiverError(f"{place}.beside is {beside!r}; it must be a list of mappings of name and type")
    for index, each in enumerate(beside):
        _check_keys(f"{place}.beside[{index}]", each, frozenset({"name", "type"}))
    return Waiver(
        rule=entry["rule"],
        resources=Pattern(type=entry["type"], name=entry["name"]),
        reason=entry["reason"],
        since=entry["since"],
        namespace=entry.get("namespace"),
        beside=tuple(Pattern(**each) for each in beside),
    )


def _check_keys(
    place: str, entry: Any, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> None:
    """Raise WaiverError unless an entry has the keys, with text for each that is text."""
    if not isinstance(entry, Mapping):
        raise WaiverError(f"{place} is {entry!r}; it must be a mapping of {', '.join(sorted(required))}")
    keys = frozenset(entry)
    if missing := required - keys:
        raise WaiverError(f"{place} has no {', '.join(sorted(missing))}; it must have all")
    if unknown := keys - required - optional:
        raise WaiverError(f"{place} has {', '.join(sorted(unknown))}; it must not")
    for key in sorted(keys - {"since", "beside"}):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise WaiverError(f"{place}.{key} is {entry[key]!r}; it must be text")
