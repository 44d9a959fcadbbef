"""What the schemas are built of: fields with their meaning, and the rules that the API server evaluates on them.

A field becomes a structural schema as of apiextensions.k8s.io/v1
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema),
its rules x-kubernetes-validations in CEL. The API server refuses a definition whose rules may cost too much: everything
that a rule may read has a largest size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trainyard.operator.core.reading import MOST_32, MOST_EXACT

Schema = dict[str, Any]
FORBIDDEN: Final = "FieldValueForbidden"
INVALID: Final = "FieldValueInvalid"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule in CEL.

    `message` is said when `check` is false, after the field's path and, of strings, their value: it names the field and
    what would be right. `path` is the field below this one that is wrong. `whole` rules hold for a complete object and
    not for the part of one that `overrides` is.
    """

    check: str
    message: str
    path: str = ""
    reason: str = INVALID
    whole: bool = False

    def schema(self) -> Schema:
        """An entry of x-kubernetes-validations."""
        place = {"fieldPath": self.path} if self.path else {}
        return {"rule": self.check, "message": self.message, **place, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field: `about` says what it means, `holds` what its value is, `absent` what is so where it is not given.

    `checks` are the validations of JSON schema. Objects have `fields`, lists an `item`, maps a `value`.
    """

    about: str
    holds: str
    checks: Mapping[str, Any]
    unit: str = ""
    default: Any = None
    absent: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    required: Sequence[str] = ()
    item: Field | None = None
    value: Field | None = None
    rules: Sequence[Rule] = ()

    def schema(self) -> Schema:
        """The structural schema."""
        made: Schema = {"description": self.description(), **self.checks}
        if self.default is not None:
            made["default"] = self.default
        if self.fields:
            made["properties"] = {name: each.schema() for name, each in self.fields.items()}
        if self.required:
            made["required"] = list(self.required)
        if self.item is not None:
            made["items"] = self.item.schema()
        if self.value is not None:
            made["additionalProperties"] = self.value.schema()
        if self.rules:
            made["x-kubernetes-validations"] = [each.schema() for each in self.rules]
        return made

    def description(self) -> str:
        """What `kubectl explain` shows."""
        parts = [self.about]
        if self.unit:
            parts.append(f"Unit: {self.unit}.")
        if self.otherwise():
            parts.append(f"Default: {self.otherwise()}.")
        return " ".join(parts)

    def otherwise(self) -> str:
        """What is so where the field is not given; nothing where it has to be given."""
        if self.absent or self.default is None or self.default == {}:
            return self.absent
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    def partial(self, absent: str) -> Field:
        """The same where nothing has to be given and nothing has a default: what is not given stays as it was."""
        return replace(
            self,
            default=None,
            absent=absent,
            required=(),
            fields={name: each.partial(absent) for name, each in self.fields.items()},
            rules=[each for each in self.rules if not each.whole],
        )


def text(about: str, *, most: int, least: int = 0, **more: Any) -> Field:
    """A string of `least` to `most` characters."""
    checks: Schema = {"type": "string", "maxLength": most}
    if least:
        checks["minLength"] = least
    return Field(about=about, holds="text", checks=checks, **more)


def choice(about: str, values: Sequence[str], **more: Any) -> Field:
    """One of a few words."""
    # The rules' cost is counted for the longest string that maxLength lets through; an enum counts for nothing.
    checks = {"type": "string", "enum": list(values), "maxLength": max(map(len, values))}
    return Field(about=about, holds=" | ".join(f"`{each}`" for each in values), checks=checks, **more)


def whole_number(
    about: str, *, least: int = 0, most: int | None = None, wide: bool = False, **more: Any
) -> Field:
    """An integer in a range; `wide` ones have 64 bits.

    Both ends are said: the API server holds no number against its format.
    """
    most = most if most is not None else MOST_EXACT if wide else MOST_32
    checks = {"type": "integer", "format": "int64" if wide else "int32", "minimum": least, "maximum": most}
    return Field(about=about, holds=f"integer, {least} to {most}", checks=checks, **more)


def number(about: str, **more: Any) -> Field:
    """Any number."""
    return Field(about=about, holds="number", checks={"type": "number"}, **more)


def yes_or_no(about: str, **more: Any) -> Field:
    """A boolean."""
    return Field(about=about, holds="boolean", checks={"type": "boolean"}, **more)


def moment(about: str, **more: Any) -> Field:
    """A time, RFC 3339."""
    checks = {"type": "string", "format": "date-time", "maxLength": 40}
    return Field(about=about, holds="time, RFC 3339", checks=checks, **more)


def quantity(about: str, name: str, example: str, **more: Any) -> Field:
    """A Kubernetes quantity above zero (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).

    Read by `trainyard.k8s.quantity`, which knows no sign and no exponent of three digits; CEL's own parser takes both.
    """
    checks = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
    }
    rule = Rule(
        check="type(self) == int ? self > 0 : "
        "!self.matches('^[+]|[eE][+-]?[0-9]{3}') && isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        message=f"{name} must be a quantity above 0, such as {example}",
    )
    return Field(about=about, holds=f"quantity, such as {example}", checks=checks, rules=(rule,), **more)


def group(about: str, fields: Mapping[str, Field], **more: Any) -> Field:
    """An object with these fields."""
    return Field(about=about, holds="object", checks={"type": "object"}, fields=fields, **more)


def listing(about: str, item: Field, *, most: int, key: Sequence[str] = (), **more: Any) -> Field:
    """A list of at most `most` entries. One with a `key` has each value of it once, and appliers share it by entry."""
    kind: Schema = {"x-kubernetes-list-type": "atomic"}
    if key:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(key)}
    holds = f"list of at most {most}" if item.fields else f"list of at most {most} ({item.holds})"
    return Field(
        about=about, holds=holds, checks={"type": "array", "maxItems": most, **kind}, item=item, **more
    )


def mapping(about: str, value: Field, *, most: int, **more: Any) -> Field:
    """A map from names to values, of at most `most` entries."""
    holds = f"map of at most {most} ({value.holds})"
    return Field(
        about=about, holds=holds, checks={"type": "object", "maxProperties": most}, value=value, **more
    )


def foreign(about: str, **more: Any) -> Field:
    """An object of Kubernetes' own, of any content: its fields are checked when something is made of it.

    A map of anything, and not one object that keeps unknown fields: of two such objects CEL's `==` (kubernetes 1.35,
    unstructuredMap.Equal in k8s.io/apiserver/pkg/cel/common/values.go) does not see that a field got another name.
    """
    anything = Field(
        about="As Kubernetes has it.", holds="anything", checks={"x-kubernetes-preserve-unknown-fields": True}
    )
    made = mapping(about, anything, most=64, **more)
    return replace(made, holds="object of Kubernetes")


def named(about: str, pattern: str, name: str, right: str, *, most: int, **more: Any) -> Field:
    """A string of a certain form; who gives another is told what would be `right`, where `pattern` would say itself."""
    rule = Rule(
        check=f"self.matches({pattern!r})",
        message=f"{name} must be {right}",
    )
    return replace(text(about, most=most, **more), holds=right, rules=(rule,))
