"""Conversion of Pulumi's property values to plain Python values and back.

On the wire, a property map is a protobuf `Struct`. Values that JSON lacks are objects with a signature key
(https://pulumi-developer-docs.readthedocs.io/latest/docs/architecture/types.html). Here:

- a value that is not known yet (preview) is `UNKNOWN`;
- `Secret(value)` marks a value as a secret (providers get inputs without it, see `mark_secrets`);
- numbers without a fraction are `int`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"

# The engine has one for each kind of value. The SDKs send only this one.
_UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"

Props = dict[str, Any]


class Unknown:
    """The type of `UNKNOWN`. Its truth value raises an error, so that no code decides on it by accident."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value has no truth value; ask `is_unknown` or `contains_unknown` first")

    def __deepcopy__(self, _memo: dict[int, Any]) -> Unknown:
        return self


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Secret:
    """An output that the engine must encrypt in the state and hide in its output."""

    value: Any


def is_unknown(value: object) -> bool:
    """Return whether the value is `UNKNOWN` itself."""
    return isinstance(value, Unknown)


def contains_unknown(value: Any) -> bool:
    """Return whether the value is or contains `UNKNOWN` at any depth."""
    if isinstance(value, Secret):
        return contains_unknown(value.value)
    if isinstance(value, Mapping):
        return any(contains_unknown(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(contains_unknown(item) for item in value)
    return is_unknown(value)


def without_secrets(value: Any) -> Any:
    """Return the value with every `Secret` replaced by its content."""
    if isinstance(value, Secret):
        return without_secrets(value.value)
    if isinstance(value, Mapping):
        return {key: without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


def contains_secret(value: Any) -> bool:
    """Return whether the value is or contains a `Secret` at any depth."""
    if isinstance(value, Mapping):
        return any(contains_secret(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(contains_secret(item) for item in value)
    return isinstance(value, Secret)


def mark_secrets(outputs: Any, *sources: Any) -> Any:
    """Mark all outputs as secret that are secret under the same path in one of `sources`.

    Objects are compared key by key. If a list has a secret anywhere, the whole output at its path becomes a secret,
    because the positions can differ (the engine does the same for providers that accept no secrets).
    """
    marks = [source for source in sources if contains_secret(source)]
    if not marks or isinstance(outputs, Secret):
        return outputs
    if isinstance(outputs, Mapping) and all(isinstance(mark, Mapping) for mark in marks):
        return {
            key: mark_secrets(item, *(mark[key] for mark in marks if key in mark))
            for key, item in outputs.items()
        }
    return Secret(without_secrets(outputs))


def from_wire(value: Any) -> Any:
    """Return a protobuf `Value` as a plain value."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        text = value.string_value
        return UNKNOWN if text == _UNKNOWN_TEXT else text
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "bool_value":
        return value.bool_value
    if kind == "list_value":
        return [from_wire(item) for item in value.list_value.values]
    if kind == "struct_value":
        return _object(struct_to_props(value.struct_value))
    return None


def struct_to_props(struct: Any) -> Props:
    """Return a protobuf `Struct` as a dictionary."""
    return {key: from_wire(value) for key, value in struct.fields.items()}


def _object(fields: Props) -> Any:
    signature = fields.get(SIGNATURE)
    if signature == SECRET:
        return Secret(fields.get("value"))
    if signature == OUTPUT:
        value = fields.get("value", UNKNOWN)
        return Secret(value) if fields.get("secret") is True else value
    if signature == RESOURCE:
        # The value of a custom resource is its id, of a component its URN. An id that is not known yet is the empty
        # text.
        if "id" not in fields:
            return fields.get("urn")
        return UNKNOWN if fields["id"] in ("", None) else fields["id"]
    return fields


def to_wire(value: Any, target: Any) -> None:
    """Write a plain value into an existing protobuf `Value`.

    Raises:
        TypeError: Pulumi has no form for the value.
    """
    if value is None:
        target.null_value = 0
    elif isinstance(value, Unknown):
        target.string_value = _UNKNOWN_TEXT
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, Secret):
        target.struct_value.fields[SIGNATURE].string_value = SECRET
        to_wire(value.value, target.struct_value.fields["value"])
    elif isinstance(value, Mapping):
        target.struct_value.SetInParent()
        for key, item in value.items():
            to_wire(item, target.struct_value.fields[str(key)])
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        target.list_value.SetInParent()
        for item in value:
            to_wire(item, target.list_value.values.add())
    else:
        raise TypeError(f"{type(value).__name__} is not a property value: {value!r}")


def fill_struct(struct: Any, props: Mapping[str, Any]) -> None:
    """Write a dictionary into an existing protobuf `Struct`."""
    for key, item in props.items():
        to_wire(item, struct.fields[key])


def decode_json(value: Any) -> Any:
    """Decode a provider setting that SDKs encode: a text that is a JSON document becomes its value."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def diff_paths(old: Any, new: Any, path: str = "") -> dict[str, str]:
    """Return the different property paths with `add`, `delete` or `update`; unknown new values are updates."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: dict[str, str] = {}
        for key in sorted({*old, *new}):
            inner = join_path(path, key)
            if key not in new:
                found[inner] = "delete"
            elif key not in old:
                found[inner] = "add"
            else:
                found.update(diff_paths(old[key], new[key], inner))
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = {}
        for index in range(max(len(old), len(new))):
            inner = f"{path}[{index}]"
            if index >= len(new):
                found[inner] = "delete"
            elif index >= len(old):
                found[inner] = "add"
            else:
                found.update(diff_paths(old[index], new[index], inner))
        return found
    if isinstance(old, bool) != isinstance(new, bool):
        return {path: "update"}
    return {} if old == new and not is_unknown(new) else {path: "update"}


def join_path(path: str, key: str) -> str:
    """Return a path extended by a key, quoted where the engine's syntax needs it: `metadata.labels["a.b"]`."""
    if key and all(character not in key for character in '."[]'):
        return f"{path}.{key}" if path else key
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{path}["{quoted}"]'
