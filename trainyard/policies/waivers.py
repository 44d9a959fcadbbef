"""Waivers: what one rule does not hold against one resource, with the reason and its day (`waivers.yaml`).

The file is for our own rules and for checkov's, which a judge of the test suite runs.
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
KEYS: Final = frozenset({"rule", "type", "name", "reason", "since"})
# What bounds a waiver further.
BOUNDS: Final = frozenset({"namespace", "beside"})
BESIDE_KEYS: Final = frozenset({"type", "name"})


class WaiverError(Exception):
    """The file of waivers is wrong."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Resources by patterns of their type token and logical name."""

    type: str
    name: str

    def has(self, type_: str, name: str) -> bool:
        """Whether a resource is one of them."""
        return fnmatchcase(type_, self.type) and fnmatchcase(name, self.name)

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """`type` and `name` are patterns of type tokens and of logical names; `since` is the day it was written.

    With a `namespace` it is about objects of that one alone. With `beside` it counts only in a stack that has one of
    these resources, which is what the reason is about.
    """

    rule: str
    type: str
    name: str
    reason: str
    since: datetime.date
    namespace: str | None = None
    beside: tuple[Kind, ...] = ()

    def matches(self, rule: str, type_: str, name: str, namespace: str | None, stack: Stack) -> bool:
        """Whether it is about this rule and this resource of a stack; `namespace` is None outside Kubernetes."""
        return (
            rule == self.rule
            and Kind(type=self.type, name=self.name).has(type_, name)
            and self.namespace in (None, namespace)
            and self._counts_in(stack)
        )

    def _counts_in(self, stack: Stack) -> bool:
        return not self.beside or any(
            kind.has(each.type, each.name) for kind in self.beside for each in stack.resources
        )

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.rule} on {self.type} {self.name}{where} (since {self.since})"


def namespace_of(resource: Resource) -> str | None:
    """The namespace of an object; None where it has none, or one that is not known."""
    metadata = resource.properties.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) else None


def read(text: str) -> list[Waiver]:
    """The waivers of a file.

    Raises:
        WaiverError: one lacks a key, has another one, gives no reason or no day.
    """
    result = []
    for index, entry in enumerate(yaml.safe_load(text) or []):
        result.append(_waiver(f"waivers[{index}]", entry))
    return result


def load() -> list[Waiver]:
    """The waivers of the project.

    Raises:
        WaiverError: as `read`.
    """
    return read(FILE.read_text())


def _waiver(place: str, entry: Any) -> Waiver:
    if not isinstance(entry, dict):
        raise WaiverError(f"{place} is {entry!r}; it must be a mapping of {', '.join(sorted(KEYS))}")
    wrong = sorted(set(entry) - BOUNDS ^ KEYS)
    if wrong:
        raise WaiverError(
            f"{place} lacks or should not have {', '.join(wrong)}; its keys are {', '.join(sorted(KEYS))}"
            f" and, where it is bounded, {' or '.join(sorted(BOUNDS))}"
        )
    if not isinstance(entry["since"], datetime.date):
        raise WaiverError(f"{place}.since is {entry['since']!r}; it must be a day such as 2026-11-21")
    for key in ("rule", "type", "name", "reason", "namespace"):
        if key in entry:
            _text(f"{place}.{key}", entry[key])
    return Waiver(**{**entry, "beside": _beside(f"{place}.beside", entry.get("beside", []))})


def _beside(place: str, listed: Any) -> tuple[Kind, ...]:
    if not isinstance(listed, list):
        raise WaiverError(f"{place} is {listed!r}; it must be a list of mappings of name and type")
    found = []
    for index, each in enumerate(listed):
        if not isinstance(each, dict) or set(each) != BESIDE_KEYS:
            raise WaiverError(f"{place}[{index}] is {each!r}; it must be a mapping of name and type")
        for key in sorted(BESIDE_KEYS):
            _text(f"{place}[{index}].{key}", each[key])
        found.append(Kind(**each))
    return tuple(found)


def _text(place: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise WaiverError(f"{place} is {value!r}; it must be a text")
