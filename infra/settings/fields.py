"""The base class, the fields (`setting()`) and the value types of the models of a stack file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

# Including line breaks.
CONTROL: Final = r"[\x00-\x1f\x7f]"
MAXIMUM: Final = 2**31 - 1
REQUIRED: Final[Any] = ...
# The effect of another value on a running stack. `infra.changes` refuses changes of fixed settings.
IN_PLACE: Final = "in place"
NEW_NODES: Final = "in place, for new nodes"
NEXT_RUN: Final = "in place, for the next `runId`"
NEXT_JOB: Final = "in place, for the next job"
FIXED: Final = "fixed"
_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}


def key_of(attribute: str) -> str:
    """Return the key of a stack file for an attribute: `root_volume_gib` is `rootVolumeGiB`."""
    name = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), attribute)
    return name.replace("Gib", "GiB").replace("PerGpu", "PerGPU")


def setting(
    default: Any,
    change: str,
    *,
    example: Any = None,
    unit: str = "",
    default_text: str = "",
    ge: int | None = None,
    le: int | None = None,
) -> Any:
    """Describe a key of the stack file; the docstring below it is its description.

    Args:
        default: The value without the key; REQUIRED if the key must be set.
        change: The effect of another value on a running stack.
        example: A valid value; None for a mapping, whose keys have their own examples.
        unit: The unit of a number.
        default_text: The default in words, if it depends on other settings.
        ge: The minimum of a number.
        le: The maximum of a number.
    """
    extra = {"changedLater": change, "unit": unit, "defaultText": default_text}
    examples = None if example is None else [example]
    maximum = MAXIMUM if le is None and ge is not None else le
    return Field(default, ge=ge, le=maximum, examples=examples, json_schema_extra=dict(extra))


class Model(BaseModel):
    """A mapping of the stack file. A key without a value counts as absent, and unknown keys are errors."""

    model_config = ConfigDict(
        alias_generator=key_of,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_by_name=True,
    )

    # The entries of a list of such mappings in a message, in the plural and in the singular.
    entries: ClassVar[str] = "mappings"
    entry: ClassVar[str] = "a mapping"

    @classmethod
    def to_mapping(cls, data: Any) -> Any:
        """Return the keys with values. Other values are returned unchanged."""
        if not isinstance(data, Mapping):
            return data
        known = {each.alias for each in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_keys(cls, data: Any) -> Any:
        return cls.to_mapping(data)


def type_name(value: object) -> str:
    """Return the name of a YAML value's type for a message."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """Return a value as YAML. A long value is truncated."""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str) else "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def mistyped(value: object, must_be: str) -> str:
    """Return the message for a value of another type."""
    return f"{shown(value)} is {type_name(value)}; it must be {must_be}"


def similar(word: str, known: Iterable[str]) -> str:
    """Return the most similar known word, regardless of case; "" for none."""
    names = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.strip().lower(), list(names), n=1, cutoff=0.6)
    return names[close[0]] if close else ""


def hint(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` if a known word is similar, else ""."""
    found = similar(word, known)
    return f"; did you mean {found}?" if found else ""


class Value:
    """A type of values: `check` returns the value or raises ValueError; `kind` is its name in docs/settings.md."""

    must_be: str
    kind: str

    def check(self, value: Any) -> Any:
        """Return the value.

        Raises:
            ValueError: It is not of this type. The message says what it must be.
        """
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.schema()


@dataclass(frozen=True)
class Text(Value):
    """A text that matches a pattern. Without a pattern, any text in one line without spaces at its ends."""

    must_be: str = "a text"
    pattern: str | None = None
    kind = "text"

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(mistyped(value, self.must_be))
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise ValueError(f"{shown(value)} is invalid; it must be {self.must_be}")
        if not value and self.pattern is None:
            raise ValueError(f"'' is empty; it must be {self.must_be}")
        if self.pattern is None and (value != value.strip() or re.search(CONTROL, value)):
            raise ValueError(
                f"{shown(value)} is invalid; it must be {self.must_be}, in one line and without spaces at its ends"
            )
        return value

    def schema(self) -> dict[str, Any]:
        if self.pattern is None:
            return {"type": "string", "minLength": 1}
        # JSON schema has no names for groups and no \\Z.
        pattern = re.sub(r"\?P<\w+>", "", self.pattern).replace(r"\Z", "$")
        return {"type": "string", "pattern": f"^(?:{pattern})$"}


class Scalar(Text):
    """A text. A number or boolean becomes its YAML text."""

    def check(self, value: Any) -> Any:
        if isinstance(value, bool):
            return super().check(str(value).lower())
        return super().check(str(value) if isinstance(value, int | float) else value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [super().schema(), {"type": ["number", "boolean"]}]}


class MapKey(Text):
    """A key of a mapping of texts. YAML reads `on`, `yes` and `null` as something else."""

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(
                f"has the key {shown(value)}, which is {type_name(value)}; it must be a text, in quotes"
            )
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise ValueError(f"has the key '{value}'; it must be {self.must_be}")
        return value


class TrueOrText(Text):
    """true, false, or a text that matches the pattern."""

    kind = "true, false or text"

    def check(self, value: Any) -> Any:
        return value if isinstance(value, bool) else super().check(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, super().schema()]}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# 4.0 is also a whole number.
WholeNumber = Annotated[int, BeforeValidator(_whole)]


class Choice(Value):
    """One of a few texts or whole numbers."""

    def __init__(self, options: Sequence[str] | Sequence[int]) -> None:
        self.options = tuple(options)
        self.must_be = "one of " + ", ".join(map(str, self.options))
        self.kind = "one of " + ", ".join(f"`{option}`" for option in self.options)

    def check(self, value: Any) -> Any:
        value, of = _whole(value), type(self.options[0])
        if type(value) is not of:
            if of is str and str(value) in self.options:
                raise ValueError(f'{value} is {type_name(value)}; write it in quotes: "{value}"')
            raise ValueError(mistyped(value, self.must_be))
        if value not in self.options:
            near = hint(str(value), map(str, self.options)) if of is str else ""
            raise ValueError(f"{shown(value)} is not known{near}; it must be {self.must_be}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string" if isinstance(self.options[0], str) else "integer", "enum": [*self.options]}


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# YAML has lists; settings are immutable.
AsTuple = BeforeValidator(_tuple)
