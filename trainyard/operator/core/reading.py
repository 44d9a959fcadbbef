"""Values of an object of the API, read so that whatever is wrong is a line with its place, never an exception.

The API server has checked objects against the schema; one from before a change of the schema, or out of a backup of
etcd, may still be anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from launcher.validation import Reader
from trainyard.k8s import quantity

JsonObject = dict[str, Any]
# What whole numbers of the API may be at most, where their field says nothing else: of 32 bits, and of 64 as far as
# every reader of JSON has them exactly. The schema of the kinds has the same ends.
MOST_32: Final = 2**31 - 1
MOST_EXACT: Final = 2**53 - 1
_LONGEST_SHOWN: Final = 80


class Fields(Reader):
    """A Reader whose fields may be missing; each method then returns `default`. Null is missing, as in Kubernetes."""

    def wrong(self, key: str, right: str) -> None:
        value = json.dumps(self.values.get(key), default=repr) if key in self.values else "missing"
        if len(value) > _LONGEST_SHOWN:
            value = value[:_LONGEST_SHOWN] + "..."
        self.problems.append(f"{self.place}.{key} is {value}; it must be {right}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def words(self, key: str, default: str = "", pattern: str = "", right: str = "a text") -> str:
        """A text, of this form where one is given."""
        return self.text(key, right, re.compile(pattern) if pattern else None) if self.has(key) else default

    def whole(self, key: str, default: int, *, least: int = 0, most: int = MOST_32) -> int:
        value = self.whole_or_none(key, least=least, most=most)
        return default if value is None else value

    def whole_or_none(self, key: str, *, least: int = 0, most: int = MOST_32) -> int | None:
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.wrong(key, f"a whole number from {least} to {most}")
            return None
        return value

    def needed(self, key: str, *, least: int = 0, most: int = MOST_32) -> int:
        """A whole number that has to be given."""
        if not self.has(key):
            self.wrong(key, f"a whole number from {least} to {most}")
        return self.whole(key, least, least=least, most=most)

    def size(self, key: str) -> quantity.Amount | None:
        """A quantity above 0, in units of its resource; None where there is none."""
        return quantity.parse(self.amount(key)) if self.has(key) else None

    def yes(self, key: str, default: bool = False) -> bool:
        return self.flag(key) if self.has(key) else default

    def one_of(self, key: str, choices: Sequence[str], default: str = "") -> str:
        if not self.has(key):
            return default
        value = self.raw(key)
        if value not in choices:
            self.wrong(key, " or ".join(choices))
            return default
        return str(value)

    def strings(self, key: str) -> tuple[str, ...]:
        return self.texts(key) if self.has(key) else ()

    def map(self, key: str) -> dict[str, str]:
        return self.table(key) if self.has(key) else {}

    def anything(self, key: str) -> JsonObject:
        """An object of Kubernetes' own."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(key, "an object")
            return {}
        return value

    def objects(self, key: str) -> tuple[JsonObject, ...]:
        """A list of objects of Kubernetes' own."""
        value = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.wrong(key, "a list of objects")
            return ()
        return tuple(value)

    def part(self, key: str) -> Fields:
        """An object below this one; an empty one where there is none."""
        value = self.raw(key)
        return Fields({} if value is None else value, f"{self.place}.{key}", self.problems)


def parse_time(value: Any) -> float | None:
    """Seconds since the epoch of a time of Kubernetes; None if it is none."""
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return parsed.timestamp() if parsed is not None and parsed.tzinfo is not None else None
