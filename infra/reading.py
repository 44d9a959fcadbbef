"""Reading nested settings so that every mistake is told, each with its path, the value and what would be right."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Line breaks among them.
CONTROL: Final = r"[\x00-\x1f\x7f]"
_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}


def type_name(value: object) -> str:
    """How a person calls the type of a YAML value."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def hint(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?` where `word` is like a known one, else an empty text."""
    like = key_like(word, known)
    return f"; did you mean {like}?" if like else ""


def key_like(word: str, known: Iterable[str]) -> str:
    """The known word that this one is most like; an empty text where it is like none."""
    # Ignore the case, in which a whole word may differ.
    names = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.strip().lower(), list(names), n=1, cutoff=0.6)
    return names[close[0]] if close else ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A key that a reader asked for: what it may hold, what it is without a value, and its unit."""

    kind: str
    default: str
    unit: str = ""


@dataclass
class Problems:
    """What is wrong so far, in the order of the stack file's sections.

    `asked` holds every key that the readers know, by its path; an entry of a list has `[]` for its number.
    `takes_ended`: that something has ended by now is no mistake. `hidden` are sections of which nothing more is told.
    """

    lines: list[str] = field(default_factory=list)
    asked: dict[str, Asked] = field(default_factory=dict)
    takes_ended: bool = False
    hidden: set[str] = field(default_factory=set)

    def add(self, path: str, message: str) -> None:
        """One line: the key's path, then what is wrong and what would be right. What can't be printed is escaped."""
        if self.hidden & {path, re.split(r"[.\[]", path, maxsplit=1)[0]}:
            return
        line = f"{path}: {message}"
        self.lines.append("".join(c if c.isprintable() else repr(c)[1:-1] for c in line))

    def drop_missing(self, path: str) -> None:
        """Forget that a key is missing."""
        self.lines = [line for line in self.lines if not line.startswith(f"{path}: is missing")]

    def about(self, path: str) -> bool:
        """Whether something is wrong with a key or with what is below it."""
        return any(re.match(rf"{re.escape(path)}[.:\[]", line) for line in self.lines)


class Section:
    """One mapping of the stack file. Each reading method takes a key and returns a value of the wanted type.

    Where the value is wrong, the problem is noted and a stand-in of the right type comes back, so that reading goes
    on to the next mistake. `wrong` tells which keys must not be used for further checks.
    """

    def __init__(self, problems: Problems, path: str, value: object, wanted: str = "a mapping") -> None:
        self.problems = problems
        self.path = path
        self.wrong: set[str] = set()
        self._seen: set[str] = set()
        self._values: Mapping[str, Any] = {}
        # What is no mapping has no keys: that they are missing is not told, too.
        self._broken = value is not None and not isinstance(value, Mapping)
        if isinstance(value, Mapping):
            self._values = value
        elif value is not None:
            problems.add(path, f"{shown(value)} is {type_name(value)}; it must be {wanted}")

    def at(self, key: str) -> str:
        """The path of a key."""
        return f"{self.path}.{key}"

    def reject(self, key: str, message: str) -> None:
        """Note that a key's value is wrong."""
        self.wrong.add(key)
        self.problems.add(self.at(key), message)

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self._values.get(key) is not None

    def _asked(self, key: str, kind: str, default: object = None, unit: str = "") -> None:
        path = re.sub(r"\[[0-9]+\]", "[]", self.at(key))
        shown = "required" if default is None else _default(default)
        self.problems.asked.setdefault(path, Asked(kind=kind, default=shown, unit=unit))

    def _take(self, key: str, kinds: tuple[type, ...], wanted: str) -> Any:
        self._seen.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        # A boolean is an int for Python, not for a person.
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            self.reject(key, f"{shown(value)} is {type_name(value)}; it must be {wanted}")
            return None
        return value

    def _missing(self, key: str, wanted: str) -> None:
        if self._broken:
            self.wrong.add(key)
        elif key not in self.wrong:
            self.reject(key, f"is missing; it must be {wanted}")

    def text(
        self, key: str, default: str | None = None, *, pattern: str | None = None, wanted: str = "a text"
    ) -> str:
        """Return a text, which is required without a default. `wanted` describes the values that match `pattern`.

        Without a pattern, it is any text in one line without spaces at its ends.
        """
        self._asked(key, "text", default)
        value = self._take(key, (str,), wanted)
        if value is None:
            if default is None:
                self._missing(key, wanted)
            return default or ""
        if pattern and not re.fullmatch(pattern, value):
            self.reject(key, f"{shown(value)} is invalid; it must be {wanted}")
        elif pattern is None and (value != value.strip() or re.search(CONTROL, value)):
            self.reject(
                key,
                f"{shown(value)} is invalid; it must be {wanted}, in one line and without spaces at its ends",
            )
        return str(value)

    def optional_text(self, key: str, *, pattern: str | None = None, wanted: str = "a text") -> str | None:
        """A text or nothing."""
        self._asked(key, "text", "")
        if not self.has(key):
            self._seen.add(key)
            return None
        return self.text(key, pattern=pattern, wanted=wanted)

    def choice(self, key: str, options: tuple[str, ...], default: str | None = None) -> str:
        """One of the given words."""
        self._asked(key, "one of " + ", ".join(f"`{option}`" for option in options), default)
        wanted = "one of " + ", ".join(options)
        given = self._values.get(key)
        if not isinstance(given, str) and str(given) in options:
            self._seen.add(key)
            self.reject(key, f'{given} is {type_name(given)}; write it in quotes: "{given}"')
            return options[0] if default is None else default
        value = self.text(key, default, wanted=wanted)
        if key not in self.wrong and value not in options:
            self.reject(key, f"'{value}' is not known{hint(value, options)}; it must be {wanted}")
        return value

    def integer(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = 2**31 - 1, unit: str = ""
    ) -> int:
        """A whole number between `least` and `most`; without a default it is required."""
        self._asked(key, f"whole number, {_range(least, most)}", default, unit)
        upper = "" if most == 2**31 - 1 else f" and at most {most}"
        wanted = f"a whole number{f' of {unit}' if unit else ''} of at least {least}{upper}"
        value = self._take(key, (int, float), wanted)
        if value is None:
            if default is None:
                self._missing(key, wanted)
            return least if default is None else default
        # The range first: int() takes neither infinity nor "not a number".
        if not least <= value <= most or value != int(value):
            self.reject(key, f"{value} is out of range; it must be {wanted}")
            return least
        return int(value)

    def integer_choice(self, key: str, options: tuple[int, ...], default: int, *, unit: str) -> int:
        """One of the given whole numbers, which ascend."""
        self._asked(key, "one of " + ", ".join(f"`{option}`" for option in options), default, unit)
        value = self.integer(key, default, least=options[0], most=options[-1], unit=unit)
        if key not in self.wrong and value not in options:
            near = sorted(options, key=lambda option: abs(option - value))[:2]
            self.reject(
                key,
                f"{value} {unit} are not offered; it must be one of {', '.join(map(str, options))}, such as"
                f" {' or '.join(map(str, sorted(near)))}",
            )
            return default
        return value

    def optional_integer(self, key: str, *, least: int, most: int = 2**31 - 1, unit: str = "") -> int | None:
        """A whole number or nothing."""
        self._asked(key, f"whole number, {_range(least, most)}", "", unit)
        if not self.has(key):
            self._seen.add(key)
            return None
        return self.integer(key, least=least, most=most, unit=unit)

    def boolean(self, key: str, default: bool) -> bool:
        """true or false."""
        self._asked(key, "true or false", default)
        value = self._take(key, (bool,), "true or false")
        return default if value is None else bool(value)

    def texts(
        self,
        key: str,
        default: tuple[str, ...] | None = (),
        *,
        pattern: str | None = None,
        wanted: str = "a text",
    ) -> tuple[str, ...]:
        """A list of texts, each of which `pattern` must match."""
        self._asked(key, "list of texts", default)
        value = self._take(key, (list,), f"a list, each entry {wanted}")
        if value is None:
            if default is None:
                self._missing(key, f"a list, each entry {wanted}")
            return default or ()
        for index, entry in enumerate(value):
            if not isinstance(entry, str):
                self.reject(f"{key}[{index}]", f"{shown(entry)} is {type_name(entry)}; it must be {wanted}")
                self.wrong.add(key)
            elif pattern and not re.fullmatch(pattern, entry):
                self.reject(f"{key}[{index}]", f"{shown(entry)} is invalid; it must be {wanted}")
                self.wrong.add(key)
        return tuple(str(entry) for entry in value)

    def text_map(
        self,
        key: str,
        *,
        keys: str | None = None,
        keys_wanted: str = "",
        pattern: str | None = None,
        wanted: str = "a text",
    ) -> dict[str, str]:
        """A mapping of texts; numbers and booleans are written as YAML writes them.

        `keys` is a pattern that every key must match, `pattern` one that every value must match.
        """
        self._asked(key, "mapping of texts", {})
        value = self._take(key, (dict,), "a mapping of texts") or {}
        result: dict[str, str] = {}
        for name, entry in value.items():
            path = f"{key}.{name}"
            # YAML takes `on`, `yes` and `null` for something else.
            if not isinstance(name, str):
                self.reject(path, f"has a key that is {type_name(name)}; it must be a text, in quotes")
                continue
            if isinstance(entry, bool):
                text = str(entry).lower()
            elif isinstance(entry, str | int | float):
                text = str(entry)
            else:
                self.reject(path, f"{shown(entry)} is {type_name(entry)}; it must be {wanted}")
                continue
            if keys and not re.fullmatch(keys, name):
                self.reject(path, f"has the key '{name}'; it must be {keys_wanted}")
            elif pattern and not re.fullmatch(pattern, text):
                self.reject(path, f"{shown(text)} is invalid; it must be {wanted}")
            else:
                result[name] = text
        if len(result) < len(value):
            self.wrong.add(key)
        return result

    def true_or_text(self, key: str, *, pattern: str, wanted: str) -> bool | str:
        """true, false (the default), or a text that `pattern` must match."""
        self._asked(key, "true, false or text", False)
        value = self._take(key, (bool, str), wanted)
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            self.reject(key, f"{shown(value)} is invalid; it must be {wanted}")
            return False
        return value if isinstance(value, str) else bool(value)

    def section(self, key: str) -> Section:
        """A nested mapping; an absent one is empty."""
        self._asked(key, "mapping", {})
        self._seen.add(key)
        return Section(self.problems, self.at(key), self._values.get(key))

    def optional_section(self, key: str) -> Section | None:
        """A nested mapping, or nothing where the key has no value."""
        self._asked(key, "mapping", "")
        self._seen.add(key)
        return Section(self.problems, self.at(key), self._values[key]) if self.has(key) else None

    def entries(self, key: str, *, alone: str) -> list[Section]:
        """The entries of a list of mappings; a text by itself stands for a mapping with that text at `alone`."""
        wanted = f"a {alone}'s name or a mapping"
        self._asked(key, "list of names or mappings", ())
        value = self._take(key, (list,), f"a list, each entry {wanted}") or []
        return [
            Section(
                self.problems,
                f"{self.at(key)}[{index}]",
                {alone: entry} if isinstance(entry, str) else {} if entry is None else entry,
                wanted,
            )
            for index, entry in enumerate(value)
        ]

    def done(self) -> None:
        """Note every key that nothing has read. One that was misspelt is not missing, too."""
        for key in self._values:
            if key not in self._seen:
                self.problems.drop_missing(self.at(key_like(str(key), self._seen)))
                self.problems.add(
                    self.at(key),
                    f"is not a known key{hint(str(key), self._seen)} (known: {_known(self._seen)})",
                )


def entries(problems: Problems, path: str, value: object) -> list[Section]:
    """The entries of a list of mappings."""
    problems.asked.setdefault(path, Asked(kind="list of mappings", default=""))
    if value is None:
        return []
    if not isinstance(value, list):
        problems.add(path, f"{shown(value)} is {type_name(value)}; it must be a list of mappings")
        return []
    return [
        Section(problems, f"{path}[{index}]", {} if entry is None else entry)
        for index, entry in enumerate(value)
    ]


def _default(value: object) -> str:
    """A default as YAML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if not isinstance(value, dict) else ""


def _range(least: int, most: int) -> str:
    return f"at least {least}" if most == 2**31 - 1 else f"{least} to {most}"


def _known(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))


def shown(value: object) -> str:
    """A value as a person recognises it, who wrote it in YAML; a long one is cut."""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def twice(values: Iterable[str]) -> list[str]:
    """What is there more than once, sorted."""
    return sorted(value for value, count in Counter(values).items() if count > 1)


def counted(number: int, noun: str) -> str:
    """A number of things in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
