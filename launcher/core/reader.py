"""Typed values out of a JSON object, with everything that is wrong with them gathered."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from launcher.core import quantity

# More seconds than anybody waits, and more of anything else than there is.
MOST = 1_000_000_000


class Reader:
    """Takes typed values out of a JSON object and gathers what is wrong with them in `problems`, a line each."""

    def __init__(self, values: Any, place: str, problems: list[str]) -> None:
        self.place, self.problems = place, problems
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        self.taken: set[str] = set()
        if not isinstance(values, dict):
            problems.append(f"{place} is {kind(values)}; right would be an object")

    def wrong(self, key: str, right: str) -> None:
        value = json.dumps(self.values[key]) if key in self.values else "missing"
        self.problems.append(f"{self.place}.{key} is {value}; right would be {right}")

    def raw(self, key: str) -> Any:
        self.taken.add(key)
        return self.values.get(key)

    def items(self, key: str) -> list[Reader]:
        """One reader for each object of a list."""
        value = self.raw(key)
        if not isinstance(value, list):
            self.wrong(key, "a list of objects, which may be empty")
            return []
        return [
            Reader(item, f"{self.place}.{key}[{index}]", self.problems) for index, item in enumerate(value)
        ]

    def text(
        self, key: str, right: str = "a text", pattern: re.Pattern[str] | None = None, most: int = 0
    ) -> str:
        """A text of this form, of up to `most` characters where that is given."""
        value = self.raw(key)
        if not isinstance(value, str) or not value or (pattern is not None and not pattern.fullmatch(value)):
            self.wrong(key, right)
            return ""
        if most and len(value) > most:
            self.wrong(key, f"{right} of at most {most} characters")
            return ""
        return value

    def number(self, key: str, least: int, optional: bool = False) -> int:
        value = self.raw(key)
        if value is None and optional:
            return least
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.wrong(key, f"a whole number of at least {least}")
            return least
        if value > MOST:
            self.wrong(key, f"a whole number of at most {MOST}")
            return least
        return value

    def amount(self, key: str) -> str:
        value = self.raw(key)
        try:
            if isinstance(value, (str, int)) and not isinstance(value, bool) and quantity.parse(value) > 0:
                return str(value)
        except ValueError:
            pass  # reported below, with the place
        self.wrong(key, "a quantity above 0, for instance 4, 1500m or 2Gi")
        return "1"

    def moment(self, key: str) -> float:
        """Seconds since the epoch of a time with its zone."""
        value = self.raw(key)
        try:
            parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
            if parsed is not None and parsed.tzinfo is not None:
                return parsed.astimezone(UTC).timestamp()
        except (ValueError, OverflowError):  # also what is after the last year there is in another zone
            pass
        self.wrong(key, "a time with its zone, for instance 2027-01-31T11:30:00Z")
        return 0.0

    def flag(self, key: str) -> bool:
        value = self.raw(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value is True

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.raw(key)
        if not isinstance(value, list) or not all(map(_is_word, value)):
            self.wrong(key, "a list of texts, as a process can be given them")
            return ()
        return tuple(value)

    def table(self, key: str) -> dict[str, str]:
        value = self.raw(key)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            self.wrong(key, "an object of texts")
            return {}
        return dict(value)

    def section(self, key: str) -> Reader:
        return Reader(self.raw(key), f"{self.place}.{key}", self.problems)

    def finish(self) -> None:
        for key in sorted(set(self.values) - self.taken):
            self.problems.append(
                f"{self.place}.{key} is not known; right would be one of {sorted(self.taken)}"
            )


def _is_word(value: Any) -> bool:
    """Whether a process can have this as an argument: UTF-8 without a NUL."""
    return isinstance(value, str) and "\0" not in value and not re.search("[\ud800-\udfff]", value)


def kind(value: Any) -> str:
    return "missing" if value is None else f"{json.dumps(value)[:40]}"
