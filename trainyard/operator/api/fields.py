"""Field types of TorchrunJobs and TorchrunQueues: one declaration gives schema, default, documentation and parsing.

An API object is a class with one attribute for each field (`min_nodes` is `minNodes` in JSON):

    class Elastic(ApiObject):
        '''The range of nodes.'''

        min_nodes: int = integer("The minimum number of nodes.", minimum=1, required=True)

The docstring and the texts are what `kubectl explain` shows. `Field.schema` returns the structural schema
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema)
with rules in CEL. The API server refuses rules that may cost too much, so each value has a maximum size. `parse` reads
an object in the controller and the plugin: one that is older than the schema, or from a backup of etcd, may hold
anything.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from trainyard.k8s import quantity as quantities
from trainyard.operator import names as n

JsonObject = dict[str, Any]
T = TypeVar("T", bound="ApiObject")
FORBIDDEN: Final = "FieldValueForbidden"
INVALID: Final = "FieldValueInvalid"
MAX_INT32: Final = 2**31 - 1
# JSON readers keep whole numbers exactly up to here.
MAX_EXACT: Final = 2**53 - 1
_MAX_SHOWN: Final = 80
_PATH: Final = "{path}"
_OBJECT: Final = "an object"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A validation rule."""

    cel: str
    message: str  # what must hold. `{path}` stands for the path of the object.
    path: str = ""  # the field in the error, below the object, such as `.minNodes`
    reason: str = INVALID
    complete: bool = False  # whether the rule needs the complete object, and so does not apply to `overrides`
    check: Callable[[Any], bool] | None = None  # the same rule for `parse`

    def schema(self) -> JsonObject:
        """Return the entry of x-kubernetes-validations."""
        path = {"fieldPath": self.path} if self.path else {}
        return {"rule": self.cel, "message": self.message, **path, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of an API object."""

    description: str
    holds: str  # the type, for the reference page
    form: str  # the type, for the message "it must be ..."
    checks: Mapping[str, Any]  # the validations of JSON schema
    unit: str = ""
    default: Any = None
    absent: str = ""  # the effect of a missing field, if it has no constant default
    required: bool = False
    fields: Mapping[str, Field] = field(default_factory=dict)
    item: Field | None = None
    value: Field | None = None
    rules: Sequence[Rule] = ()
    attribute: str = ""
    valid: Callable[[Any], bool] = lambda _: True  # whether `parse` accepts a value
    convert: Callable[[Any], Any] = lambda value: value
    empty: Any = None  # the parsed value if the field is missing and has no default
    model: type[ApiObject] | None = None  # the class of a parsed object
    optional: bool = False  # whether a missing object becomes None. Otherwise its fields get their defaults.
    # The fields that `parse` checks in an object that stays JSON.
    shape: Mapping[str, Field] = field(default_factory=dict)

    def schema(self) -> JsonObject:
        """Return the structural schema."""
        schema: JsonObject = {"description": self.explain(), **self.checks}
        if self.default is not None:
            schema["default"] = self.default
        if self.fields:
            schema["properties"] = {name: field.schema() for name, field in self.fields.items()}
        if required := [name for name, field in self.fields.items() if field.required]:
            schema["required"] = required
        if self.item is not None:
            schema["items"] = self.item.schema()
        if self.value is not None:
            schema["additionalProperties"] = self.value.schema()
        if self.rules:
            schema["x-kubernetes-validations"] = [rule.schema() for rule in self.rules]
        return schema

    def explain(self) -> str:
        """Return the description with the unit and the default, as `kubectl explain` shows it."""
        unit = f" Unit: {self.unit}." if self.unit else ""
        default = self.default_text()
        return f"{self.description}{unit}" + (f" Default: {default}." if default else "")

    def default_text(self) -> str:
        """Return the effect of a missing field; "" for a required field."""
        if self.absent or self.default is None or self.default == {}:
            return self.absent
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    def at(self, path: str) -> Field:
        """Return the field with its path in the messages of all rules."""
        below = f"{path}." if path else ""
        return replace(
            self,
            fields={name: field.at(f"{below}{name}") for name, field in self.fields.items()},
            item=self.item and self.item.at(path),
            rules=[replace(rule, message=rule.message.replace(_PATH, path)) for rule in self.rules],
        )

    def partial(self, absent: str) -> Field:
        """Return the field as below `overrides`: without defaults, required fields and rules for complete objects."""
        return replace(
            self,
            default=None,
            absent=absent,
            required=False,
            fields={name: field.partial(absent) for name, field in self.fields.items()},
            rules=[rule for rule in self.rules if not rule.complete],
        )

    def parse(self, value: Any, path: str, problems: list[str]) -> Any:
        """Return the parsed value, or the default if it is missing or invalid. Append errors to `problems`."""
        default = self.empty if self.default is None else self.default
        if value is None and self.model is not None and not self.optional:
            value = {}
        if value is None:
            if self.required:
                problems.append(f"{path} is missing; it must be {self.form}")
            return default
        if not self.valid(value):
            problems.append(f"{path} is {_shown(value)}; it must be {self.form}")
            return default if self.model is None or self.optional else self.model.parse({}, path, [])
        if self.model is not None:
            return self.model.parse(value, path, problems)
        if self.item is not None and self.item.shape:
            for index, entry in enumerate(value):
                self.item.parse(entry, f"{path}[{index}]", problems)
        for name, part in self.shape.items():
            part.parse(value.get(name), f"{path}.{name}", problems)
        return self.convert(value)


class ApiObject:
    """Base class of objects of the API. Each attribute is declared with a function of this module."""

    fields: ClassVar[Mapping[str, Field]] = {}
    rules: ClassVar[Sequence[Rule]] = ()

    def __init_subclass__(cls) -> None:
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        own = {_json_name(name): replace(field, attribute=name) for name, field in declared.items()}
        cls.fields = {**cls.fields, **own}

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    @classmethod
    def parse(cls: type[T], value: Any, path: str, problems: list[str]) -> T:
        """Return the object with its valid fields. Append a line for each invalid field to `problems`."""
        if not isinstance(value, dict):
            problems.append(f"{path} is {_shown(value)}; it must be {_OBJECT}")
            value = {}
        before = len(problems)
        values = {
            field.attribute: field.parse(value.get(name), f"{path}.{name}", problems)
            for name, field in cls.fields.items()
        }
        parsed = cls(**values)
        broken = [rule for rule in cls.rules if rule.check is not None and not rule.check(parsed)]
        for rule in broken if len(problems) == before else ():
            message = rule.message.replace(_PATH, path)
            problems.append(message if message.startswith(path) else f"{path}{rule.path}: {message}")
        return parsed


def _json_name(attribute: str) -> str:
    first, *others = attribute.split("_")
    return re.sub(r"Gpu(s?)$", r"GPU\1", first + "".join(word.capitalize() for word in others))


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, default=repr)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def parse_time(value: Any) -> float | None:
    """Return the seconds since the epoch of a time in RFC 3339, None for any other value."""
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return parsed.timestamp() if parsed is not None and parsed.tzinfo is not None else None


class Form(NamedTuple):
    """A form of strings: an RE2 expression, its description, and the maximum length."""

    expression: str
    description: str
    maximum: int


_BUCKET: Final = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_HOST: Final = r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
# 1 to 65535.
_PORT: Final = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
OBJECT_NAME: Final = Form(
    f"^{n.RFC1123_SUBDOMAIN}$", "the name of an object: lower-case letters, digits, '-' and '.'", 253
)
LABEL_VALUE: Final = Form(
    r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    "a label's value: letters, digits, '-', '_' and '.', a letter or digit at both ends",
    63,
)
BUCKET_PREFIX: Final = Form(rf"^{_BUCKET}(/[^\s]*)?$", "s3://bucket or s3://bucket/prefix", 1024)
BUCKET_OBJECT: Final = Form(rf"^{_BUCKET}/[^\s]+$", "s3://bucket/key", 2048)
ENDPOINT: Final = Form(
    f"^{_HOST}:{_PORT}$", "<host>:<port>, the port from 1 to 65535, such as etcd.training.svc:2379", 261
)


def directory(example: str) -> Form:
    """Return the form of an absolute path below `/`. Mounts of Docker and Kubernetes accept no colon."""
    return Form(r"^/[^:]+$", f"an absolute path without ':', such as {example}", 1024)


def string(
    description: str, form: Form | None = None, *, maximum: int = 0, minimum: int = 0, **more: Any
) -> Any:
    """A string of this form, or of `minimum` to `maximum` characters."""
    maximum = maximum or (form.maximum if form else 0)
    checks = {"type": "string", "maxLength": maximum, **({"minLength": minimum} if minimum else {})}
    rules = (
        [Rule(cel=f"self.matches({form.expression!r})", message=f"{_PATH} must be {form.description}")]
        if form
        else []
    )
    matches = re.compile(re.sub(r"\$$", r"\\Z", form.expression) if form else "", re.ASCII).search
    return Field(
        description=description,
        holds=form.description if form else "text",
        form=form.description if form else "a string without NUL",
        checks=checks,
        rules=rules,
        valid=lambda value: _is_text(value) and len(value) >= minimum and matches(value) is not None,
        **{"empty": "", **more},
    )  # fmt: skip


def _is_text(value: Any) -> bool:
    """Return whether a process can get this string. JSON also allows NUL and single surrogates."""
    return isinstance(value, str) and re.search("[\\0\ud800-\udfff]", value) is None


def choice(description: str, values: Sequence[str], **more: Any) -> Any:
    """One of a few strings."""
    return Field(
        description=description,
        holds=" | ".join(f"`{value}`" for value in values),
        form=" or ".join(values),
        # The API server estimates the cost of a rule from maxLength, not from the enum.
        checks={"type": "string", "enum": list(values), "maxLength": max(map(len, values))},
        valid=lambda value: value in values,
        **{"empty": "", **more},
    )


def integer(
    description: str, *, minimum: int = 0, maximum: int | None = None, int64: bool = False, **more: Any
) -> Any:
    """A whole number. Its range is explicit, because the API server does not check the format."""
    end = maximum if maximum is not None else MAX_EXACT if int64 else MAX_INT32
    size = "int64" if int64 else "int32"
    return Field(
        description=description,
        holds=f"integer, {minimum} to {end}",
        form=f"a whole number from {minimum} to {end}",
        checks={"type": "integer", "format": size, "minimum": minimum, "maximum": end},
        valid=lambda value: type(value) is int and minimum <= value <= end,
        empty=minimum if more.get("required") else None,
        **more,
    )


def number(description: str, **more: Any) -> Any:
    """A finite number."""
    more["valid"] = lambda value: type(value) in (int, float) and math.isfinite(value)
    return Field(description=description, holds="number", form="a number", checks={"type": "number"}, **more)


def boolean(description: str, **more: Any) -> Any:
    """True or false."""
    checks = {"type": "boolean"}
    more |= {"valid": lambda value: isinstance(value, bool), "empty": False}
    return Field(description=description, holds="boolean", form="true or false", checks=checks, **more)


def time(description: str, **more: Any) -> Any:
    """A time, RFC 3339."""
    more["valid"] = lambda value: parse_time(value) is not None
    checks = {"type": "string", "format": "date-time", "maxLength": 40}
    return Field(description=description, holds="time, RFC 3339", form="a time", checks=checks, **more)


def quantity(description: str, example: str, **more: Any) -> Any:
    """A Kubernetes quantity above 0 (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).

    The parser is `trainyard.k8s.quantity`. It accepts no sign and no exponent of three digits, which CEL accepts.
    """
    form = f"a quantity above 0, such as {example}"
    rule = Rule(
        cel="type(self) == int ? self > 0 : "
        "!self.matches('^[+]|[eE][+-]?[0-9]{3}') && isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        message=f"{_PATH} must be {form}",
    )
    return Field(
        description=description,
        holds=f"quantity, such as {example}",
        form=form,
        checks={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 32,
        },
        rules=(rule,),
        valid=_is_quantity,
        convert=quantities.parse,
        empty=1 if more.get("required") else None,
        **more,
    )


def _is_quantity(value: Any) -> bool:
    try:
        return type(value) in (str, int) and quantities.parse(value) > 0
    except ValueError:
        return False


def section(model: type[ApiObject], *, description: str = "", parsed: bool = True, **more: Any) -> Any:
    """An object of this class. With `parsed=False`, the parser checks the object and keeps it as JSON."""
    return Field(
        description=description or " ".join((model.__doc__ or "").split()),
        holds="object",
        form=_OBJECT,
        checks={"type": "object"},
        fields=model.fields,
        rules=model.rules,
        valid=lambda value: isinstance(value, dict),
        model=model if parsed else None,
        shape={} if parsed else model.fields,
        **more,
    )


def array(description: str, item: Any, *, maximum: int, key: str = "", **more: Any) -> Any:
    """A list of objects or strings. With a `key`, each value of the key is unique, as for server-side apply."""
    kind: JsonObject = {"x-kubernetes-list-type": "atomic"}
    if key:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    if isinstance(item, type):
        item = section(item, parsed=False)
    objects = item.form == _OBJECT
    return Field(
        description=description,
        holds=f"list of at most {maximum}" + ("" if objects else f" ({item.holds})"),
        form="a list of objects" if objects else "a list of strings without NUL",
        checks={"type": "array", "maxItems": maximum, **kind},
        item=item,
        valid=lambda value: isinstance(value, list) and all(map(item.valid, value)),
        convert=tuple,
        empty=(),
        **more,
    )


def mapping(description: str, value: Any, *, maximum: int = 64, **more: Any) -> Any:
    """A map from names to values."""
    return Field(
        description=description,
        holds=f"map of at most {maximum} ({value.holds})",
        form="an object of strings without NUL",
        checks={"type": "object", "maxProperties": maximum},
        value=value,
        valid=lambda values: isinstance(values, dict) and all(map(value.valid, values.values())),
        convert=dict,
        empty={},
        **more,
    )


def label_map(description: str, *, longest: int = 63, **more: Any) -> Any:
    """Labels, or annotations, which have longer values."""
    return mapping(description, string("The value of this key.", maximum=longest), **more)


def kubernetes_object(description: str, shape: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """An object of a Kubernetes API. The API server checks it when a pod is created from it.

    It is a map of anything. If it were an object with unknown fields, `==` in CEL would not see a renamed field
    (kubernetes 1.35, unstructuredMap.Equal in k8s.io/apiserver/pkg/cel/common/values.go).
    `shape` has the fields that this program reads, and that `parse` must check.
    """
    checks = {"x-kubernetes-preserve-unknown-fields": True}
    anything = Field(description="As Kubernetes has it.", holds="anything", form="anything", checks=checks)
    return replace(
        mapping(description, anything, **more),
        holds="object of Kubernetes",
        form=_OBJECT,
        valid=lambda value: isinstance(value, dict),
        convert=lambda value: value,
        shape=shape or {},
    )
