"""Validate a stack file and report all errors together, each with path, value and constraint.

`validate` returns a model even if values are invalid. Placeholders replace those, so that rules can check the others.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from infra.settings.fields import MAXIMUM, Model, Value, hint, mistyped, shown, similar

M = TypeVar("M", bound=Model)
N = TypeVar("N", bound=Model)
PREFIX = "trainyard:"
Location = tuple[int | str, ...]


@dataclass
class Problems:
    """All errors of a stack file so far."""

    _lines: list[tuple[str, str]] = field(default_factory=list)
    _paths: set[str] = field(default_factory=set)
    _invalid: set[str] = field(default_factory=set)

    def add(self, path: str, message: str) -> None:
        """Add an error, unless one is already reported at the path or above it. Escape unprintable characters."""
        if any(_is_below(path, each) for each in self._invalid):
            return
        self._paths.add(path)
        line = f"{path}: {message}"
        self._lines.append((path, "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)))

    def invalidate(self, path: str, message: str | None = None) -> None:
        """Report no further errors at or below a path. Without a message, another line already reports this one."""
        if message is not None:
            self.add(path, message)
        self._paths.add(path)
        self._invalid.add(path)

    def lines(self, sections: Iterable[str]) -> list[str]:
        """Return one line per error: first those of the file, then by section and by entry of its list."""
        order = {section: number for number, section in enumerate(sections)}

        def place(found: tuple[str, str]) -> tuple[int, int]:
            section, _, rest = found[0].partition(".")[0].partition("[")
            index = rest.removesuffix("]")
            return order.get(section, -1), int(index) if index.isdecimal() else -1

        return [line for _, line in sorted(self._lines, key=place)]

    def about(self, path: str) -> bool:
        """Return whether a key has an error, or a key below it."""
        return any(_is_below(each, path) for each in self._paths)

    def first_keys(self, path: str) -> frozenset[str]:
        """Return the keys of a mapping that have errors."""
        below = [each.removeprefix(f"{path}.") for each in self._paths if each.startswith(f"{path}.")]
        return frozenset(each.partition(".")[0].partition("[")[0] for each in below)


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))


@dataclass(frozen=True)
class Section(Generic[M]):
    """A mapping of the stack file while its rules are checked. Keys are named as in the file."""

    problems: Problems
    path: str
    values: M

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}"

    def has(self, key: str) -> bool:
        """Return whether the key has a value, valid or not."""
        return any(type(self.values).model_fields[name].alias == key for name in self.values.model_fields_set)

    def ok(self, *keys: str) -> bool:
        """Return whether the keys have no errors."""
        return not any(self.problems.about(self.at(key)) for key in keys)

    def reject(self, key: str, message: str) -> None:
        """Report an error for a key."""
        self.problems.add(self.at(key), message)

    def reject_given(self, keys: Iterable[str], message: str) -> None:
        """Report the same error for each of the keys that have a value."""
        for key in keys:
            if self.has(key):
                self.reject(key, message)

    def part(self, key: str, values: N) -> Section[N]:
        """Return a mapping inside this one."""
        return Section(self.problems, self.at(key), values)


def sections(problems: Problems, path: str, entries: tuple[M, ...]) -> list[Section[M]]:
    """Return the entries of a list of mappings."""
    return [Section(problems, f"{path}[{index}]", entry) for index, entry in enumerate(entries)]


def validate(problems: Problems, model: type[M], config: Mapping[str, Any], prefix: str = PREFIX) -> M:
    """Validate all keys with a prefix; `config` has them without it. Report all errors."""
    try:
        return model.model_validate(config, by_alias=True, by_name=False)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    misspelt = {_meant(model, each) for each in errors if _is_unknown_key(each)}
    for each in errors:
        path = prefix + _path(each)
        is_reported = each["type"] == "missing" and each["loc"] in misspelt
        problems.invalidate(path, None if is_reported else _message(model, each))
    return _partial(model, config, [each["loc"] for each in errors])


def describe(field: FieldInfo) -> tuple[str, str]:
    """Return the kind of a field for the reference page, and the constraint on its value."""
    return _describe(field.annotation, field.metadata, field)


def model_in(annotation: Any) -> type[Model] | None:
    """Return the model of a field that is a mapping, or of the entries of a list."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, Model) else None
    return next((found for each in get_args(annotation) if (found := model_in(each))), None)


def _describe(annotation: Any, metadata: Iterable[Any], field: FieldInfo) -> tuple[str, str]:
    for each in metadata:
        if isinstance(each, Value):
            return each.kind, each.must_be
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe(args[0], args[1:], field)
    if origin in (Union, types.UnionType):
        return _describe(next(each for each in args if each is not type(None)), metadata, field)
    if annotation is bool:
        return "true or false", "true or false"
    if annotation is int:
        return _describe_number(field)
    if origin is dict:
        return "mapping of texts", "a mapping of texts"
    model = model_in(annotation)
    if origin is tuple and model is not None:
        return f"list of {model.entries}", f"a list of {model.entries}"
    if origin is tuple:
        return "list of texts", f"a list, each entry {_describe(args[0], (), field)[1]}"
    return "mapping", "a mapping"


def _describe_number(field: FieldInfo) -> tuple[str, str]:
    minimum = next(each.ge for each in field.metadata if hasattr(each, "ge"))
    maximum = next(each.le for each in field.metadata if hasattr(each, "le"))
    unit = extra_of(field, "unit")
    upper = "" if maximum == MAXIMUM else f" and at most {maximum}"
    kind = f"whole number, {f'at least {minimum}' if maximum == MAXIMUM else f'{minimum} to {maximum}'}"
    return kind, f"a whole number{f' of {unit}' if unit else ''} of at least {minimum}{upper}"


def extra_of(field: FieldInfo, name: str) -> str:
    """Return a value that `setting` stored for a field: `unit`, `changedLater` or `defaultText`."""
    extra = field.json_schema_extra
    return str(extra.get(name, "")) if isinstance(extra, dict) else ""


def _path(error: ErrorDetails) -> str:
    """Return the path of a key. The location of an invalid key of a mapping ends with [key]."""
    location, key = error["loc"], error["input"]
    if location[-1] == "[key]":
        location = (*location[:-2], key if isinstance(key, str) else shown(key))
    parts = [f"[{each}]" if isinstance(each, int) else f".{each}" for each in location]
    return "".join(parts).removeprefix(".")


def _find(model: type[Model], location: Location) -> tuple[type[Model], FieldInfo | None]:
    """Return the innermost model of a location, and its field there."""
    found: FieldInfo | None = None
    for each in location:
        if found is not None and isinstance(each, str):
            inner = model_in(found.annotation)
            if inner is None:
                break
            model, found = inner, None
        if isinstance(each, str):
            found = next((info for info in model.model_fields.values() if info.alias == each), None)
    return model, found


def _is_unknown_key(error: ErrorDetails) -> bool:
    return error["type"] in ("extra_forbidden", "invalid_key")


def _meant(model: type[Model], error: ErrorDetails) -> Location:
    """Return the location of the known key that is most similar to an unknown one."""
    *above, key = error["loc"]
    return (*above, similar(str(key), _keys(_find(model, error["loc"])[0])))


def _keys(model: type[Model]) -> list[str]:
    return sorted(str(each.alias) for each in model.model_fields.values())


def _message(model: type[Model], error: ErrorDetails) -> str:
    inner, found = _find(model, error["loc"])
    if _is_unknown_key(error):
        known = _keys(inner)
        return f"is not a known key{hint(str(error['loc'][-1]), known)} (known: {', '.join(known)})"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    must_be = describe(found)[1] if found else "a mapping"
    if error["type"] == "missing":
        return f"is missing; it must be {must_be}"
    if error["type"] in ("greater_than_equal", "less_than_equal"):
        # Other maximums are part of the description.
        if error["type"] == "less_than_equal" and error["ctx"]["le"] == MAXIMUM:
            must_be += f" and at most {MAXIMUM}"
        return f"{shown(error['input'])} is out of range; it must be {must_be}"
    if error["type"].startswith("model") and isinstance(error["loc"][-1], int) and found:
        entry = model_in(found.annotation)
        must_be = entry.entry if entry else must_be
    return mistyped(error["input"], must_be)


def _partial(model: type[M], data: Any, errors: list[Location]) -> M:
    """Return a model with the valid values, and placeholders for the others."""
    known = model.to_mapping(data)
    given = known if isinstance(known, Mapping) else {}
    values: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        value, below = given.get(info.alias), [each[1:] for each in errors if each and each[0] == info.alias]
        inner = model_in(info.annotation)
        if inner is not None and isinstance(value, list) and () not in below:
            values[name] = tuple(
                _partial(inner, entry, [each[1:] for each in below if each[0] == index])
                for index, entry in enumerate(value)
            )
        elif value == {} and not info.is_required() and not below:
            values[name] = _stand_in(info)
        elif inner is not None and value is not None and get_origin(info.annotation) is not tuple:
            values[name] = _partial(inner, value, below)
        elif isinstance(value, Mapping) and below and () not in below:
            wrong = {each[0] for each in below}
            rest = {key: each for key, each in value.items() if isinstance(key, str) and key not in wrong}
            values[name] = _adapter(model, name).validate_python(rest)
        elif value is None or below:
            values[name] = _stand_in(info)
        else:
            values[name] = _adapter(model, name).validate_python(value)
    names = {name for name, info in model.model_fields.items() if given.get(info.alias) is not None}
    return model.model_construct(_fields_set=names, **values)


@cache
def _adapter(model: type[Model], name: str) -> TypeAdapter[Any]:
    """Return the TypeAdapter that validates one field."""
    info = model.model_fields[name]
    type_: Any = Annotated[info.annotation, Field(), *info.metadata]
    return TypeAdapter(type_, config=ConfigDict(strict=True))


def _stand_in(info: FieldInfo) -> Any:
    if not info.is_required():
        return info.get_default(call_default_factory=True)
    inner = model_in(info.annotation)
    if inner is not None and get_origin(info.annotation) is not tuple:
        return _partial(inner, {}, [])
    if info.annotation is int:
        return next(each.ge for each in info.metadata if hasattr(each, "ge"))
    return "" if info.annotation is str else ()


def twice(values: Iterable[str]) -> list[str]:
    """Return the values that occur more than once, sorted."""
    return sorted(value for value, count in Counter(values).items() if count > 1)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `2 pools`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
