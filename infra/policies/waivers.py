"""Waivers: what one rule does not hold against one resource, with the reason and its day (`waivers.yaml`).

The file is for our own rules and for checkov's, which a judge of the test suite runs.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = Path(__file__).with_name("waivers.yaml")
KEYS: Final = frozenset({"rule", "type", "name", "reason", "since"})


class WaiverError(Exception):
    """The file of waivers is wrong."""


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """`type` and `name` are patterns of type tokens and of logical names; `since` is the day it was written."""

    rule: str
    type: str
    name: str
    reason: str
    since: datetime.date

    def matches(self, rule: str, type_: str, name: str) -> bool:
        """Whether it is about this rule and this resource."""
        return rule == self.rule and fnmatchcase(type_, self.type) and fnmatchcase(name, self.name)

    def __str__(self) -> str:
        return f"{self.rule} on {self.type} {self.name} (since {self.since})"


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
    wrong = sorted(set(entry) ^ KEYS)
    if wrong:
        raise WaiverError(
            f"{place} lacks or should not have {', '.join(wrong)}; its keys are {', '.join(sorted(KEYS))}"
        )
    if not isinstance(entry["since"], datetime.date):
        raise WaiverError(f"{place}.since is {entry['since']!r}; it must be a day such as 2026-11-21")
    for key in ("rule", "type", "name", "reason"):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise WaiverError(f"{place}.{key} is {entry[key]!r}; it must be a text")
    return Waiver(**entry)
