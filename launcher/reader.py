"""Typed values out of a JSON object, with everything that is wrong with them gathered."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, TypeGuard

from launcher import forms
from trainyard.k8s import quantity

# More seconds than anybody waits, and more of anything else than there is.
MOST = 1_000_000_000
_WHOLE = " of whole characters, none of them NUL"


class Reader:
    """Takes typed values out of a JSON object and gathers what is wrong with them in `problems`, a line each."""

    def __init__(self, values: Any, place: str, problems: list[str]) -> None:
        self.place, self.problems = place, problems
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        self.taken: set[str] = set()
        if not isinstance(values, dict):
            problems.append(f"{place} is {kind(values)}; it must be an object")

    def wrong(self, key: str, right: str) -> None:
        value = json.dumps(self.values[key]) if key in self.values else "missing"
        self.problems.append(f"{self.place}.{key} is {value}; it must be {right}")

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
        if not _is_text(value) or not value or (pattern is not None and not pattern.fullmatch(value)):
            self.wrong(key, right)
            return ""
        if most and len(value) > most:
            self.wrong(key, f"{right} of at most {most} characters")
            return ""
        return value

    def image(self, key: str) -> str:
        """The name of an image with a tag or a digest."""
        value = self.raw(key)
        if isinstance(value, str) and forms.is_pinned_image(value):
            return value
        self.wrong(key, "an image with a tag or digest")
        return ""

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
                parsed = parsed.astimezone(UTC)
        except (ValueError, OverflowError):  # the first and the last day there are, in some zones
            parsed = None
        if parsed is None or parsed.tzinfo is None or not 1970 <= parsed.year < 9999:
            self.wrong(key, "a time with its zone, for instance 2027-01-31T11:30:00Z")
            return 0.0
        return parsed.timestamp()

    def flag(self, key: str) -> bool:
        value = self.raw(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value is True

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.raw(key)
        if not isinstance(value, list) or not all(map(_is_text, value)):
            self.wrong(key, "a list of texts" + _WHOLE)
            return ()
        return tuple(value)

    def table(self, key: str) -> dict[str, str]:
        value = self.raw(key)
        if not isinstance(value, dict) or not all(map(_is_text, value.values())):
            self.wrong(key, "an object of texts" + _WHOLE)
            return {}
        return dict(value)

    def section(self, key: str) -> Reader:
        return Reader(self.raw(key), f"{self.place}.{key}", self.problems)

    def finish(self) -> None:
        for key in sorted(set(self.values) - self.taken):
            self.problems.append(f"{self.place}.{key} is not known; it must be one of {sorted(self.taken)}")


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether this is a text that a process can be given: JSON also writes NUL, and halves of a character."""
    return isinstance(value, str) and not re.search("[\\0\ud800-\udfff]", value)


def kind(value: Any) -> str:
    return "missing" if value is None else f"{json.dumps(value)[:40]}"
