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
class Waiver(Pattern):
    """One waiver, for the resources of its pattern.

    Attributes:
        since: The date when it was written.
        namespace: If set, the resources must be in this Kubernetes namespace.
        beside: If not empty, the waiver counts only in a stack that has one of these resources.
    """

    rule: str
    reason: str
    since: datetime.date
    namespace: str | None = None
    beside: tuple[Pattern, ...] = ()

    def matches(self, rule: str, type_: str, name: str, namespace: str | None, stack: Stack) -> bool:
        """Return whether it applies to a rule and a resource of a stack. `namespace` is None outside Kubernetes."""
        return (
            rule == self.rule
            and self.includes(type_, name)
            and self.namespace in (None, namespace)
            and (not self.beside or any(self._is_beside(each) for each in stack.resources))
        )

    def _is_beside(self, resource: Resource) -> bool:
        return any(pattern.includes(resource.type, resource.name) for pattern in self.beside)

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.rule} on {self.type} {self.name}{where} (since {self.since})"


def namespace_of(resource: Resource) -> str | None:
    """Return the namespace of an object; None if it has none or it is unknown."""
    metadata = resource.properties.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) else None


def read(text: str) -> list[Waiver]:
    """Return the waivers of a file.

    Raises:
        WaiverError: A waiver lacks a key, has an unknown one, or has a value that is no text or no date.
    """
    return [
        waiver
        for index, entry in enumerate(yaml.safe_load(text) or [])
        for waiver in _waivers(f"waivers[{index}]", entry)
    ]


def load() -> list[Waiver]:
    """Return the waivers of the project; Raises as `read`."""
    return read(FILE.read_text())


def _waivers(place: str, entry: dict[str, Any]) -> list[Waiver]:
    """Return a waiver for each rule of an entry."""
    try:
        beside = tuple(Pattern(**each) for each in entry.get("beside", ()))
        named = entry.get("rule")
        rules = named if named and isinstance(named, list) else [named]
        found = [Waiver(**{**entry, "rule": rule, "beside": beside}) for rule in rules]
    except (AttributeError, TypeError) as error:
        raise WaiverError(f"{place}: {error}") from None
    for each in found:
        texts = [each.rule, each.type, each.name, each.reason]
        texts += [text for pattern in beside for text in (pattern.type, pattern.name)]
        is_text = all(isinstance(text, str) and text.strip() for text in texts)
        if not is_text or not isinstance(each.since, datetime.date):
            raise WaiverError(
                f"{place} must have a rule, a type, a name and a reason as texts, and as since a date like 2026-11-21"
            )
    return found
