"""The base of all resource handlers: which properties it serves, how they compare, and five calls.

A handler is a class per resource token. Inputs and outputs are plain dictionaries with the property names of the
official Pulumi SDK. The provider checks names and computes differences from the tables that a handler declares. The
handler itself only calls the AWS API.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud

Props = dict[str, Any]

# Maps that belong to the stack as a whole: an entry that someone else added is drift, too.
_WHOLE_MAPS = frozenset({"tags", "tagsAll", "labels"})


class Handler:
    """A resource type. Subclasses set the tables and override the calls."""

    token: ClassVar[str]
    # Inputs that this handler supports. It refuses any other input of the official SDK by name.
    accepts: ClassVar[frozenset[str]]
    required: ClassVar[frozenset[str]] = frozenset()
    # Inputs that can't be changed in place (force-new in the official provider).
    replaces: ClassVar[frozenset[str]] = frozenset()
    # Lists whose order has no meaning.
    unordered: ClassVar[frozenset[str]] = frozenset()
    # Strings that contain JSON and are compared by meaning.
    documents: ClassVar[frozenset[str]] = frozenset()
    # Inputs that the API never returns, so a refresh keeps the values of the stack.
    write_only: ClassVar[frozenset[str]] = frozenset()
    # Defaults of the official provider.
    defaults: ClassVar[Mapping[str, Any]] = {}
    # The input that is `<resource name>-<7 hex>` if the program does not set it, and its maximum length.
    auto_name: ClassVar[str | None] = None
    auto_name_limit: ClassVar[int] = 255
    # The prefix of an automatic name, and whether the service requires lower case.
    auto_name_prefix: ClassVar[str] = ""
    auto_name_lower: ClassVar[bool] = False
    # Two of them can't exist at the same time, so a replacement deletes the old one first.
    exclusive: ClassVar[bool] = False
    # Outputs inside an input, by the input's name.
    computed_in: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # Outputs that every update changes.
    moving: ClassVar[frozenset[str]] = frozenset()
    tagged: ClassVar[bool] = False

    def create(self, cloud: Cloud, inputs: Props) -> str:
        """Create the resource and return its id as early as possible. The rest belongs into `finish`."""
        raise NotImplementedError

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        """Apply settings and wait after the creation. After a failure the state keeps the resource, for a repair."""

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        """Return the live properties, or None if the resource is gone (a "not found" error means the same)."""
        raise NotImplementedError

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        """Apply the changed inputs in place."""
        raise NotImplementedError(f"{self.token} has no update in place for {', '.join(sorted(changed))}")

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        """Delete the resource and wait until it is gone ("not found" is success)."""
        raise NotImplementedError

    def cannot_change(self, old: Props, new: Props) -> frozenset[str]:
        """Return the inputs of `old` that need a replacement for their values in `new`, such as a smaller size."""
        return frozenset()

    def check(self, inputs: Props) -> list[tuple[str, str]]:
        """Return more failures of known inputs, each as (property, reason)."""
        return []


def random_name(prefix: str, limit: int) -> str:
    """Return a name for a `namePrefix`: `<prefix>-<7 hex>`, cut to `limit` characters."""
    return f"{prefix[: limit - 8]}-{secrets.token_hex(4)[:7]}"


def canonical(handler: Handler, key: str, value: Any) -> Any:
    """Return a form in which two values of an input are equal if they mean the same."""
    if key in handler.documents and isinstance(value, str):
        return document(value)
    if isinstance(value, Mapping):
        return {k: canonical(handler, k, v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        items = [canonical(handler, "", item) for item in value]
        if key in handler.unordered:
            items.sort(key=lambda item: json.dumps(item, sort_keys=True, default=str))
        return items
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def document(text: str) -> Any:
    """Return a JSON policy document without meaningless differences: one-element lists and the order of actions."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return _policy_form(parsed)


def _policy_form(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _policy_form(value) for key, value in node.items()}
    if isinstance(node, list):
        items = [_policy_form(item) for item in node]
        if all(isinstance(item, str) for item in items):
            items = sorted(set(items))
        return items[0] if len(items) == 1 else items
    return node


def is_equal(handler: Handler, key: str, left: Any, right: Any) -> bool:
    """Return whether two values of one input mean the same. Absent and None are the same."""
    return bool(canonical(handler, key, left) == canonical(handler, key, right))


def changed_inputs(handler: Handler, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the inputs that differ, without the provider's own (two leading underscores)."""
    keys = {key for key in (*old, *new) if not key.startswith("__") and key != "tagsAll"}
    return sorted(key for key in keys if not is_equal(handler, key, old.get(key), new.get(key)))


def project(handler: Handler, inputs: Mapping[str, Any], live: Mapping[str, Any]) -> Props:
    """Return the inputs, with the live value for each one that differs.

    What the API adds (defaults, read-only fields) is left out, so that a refresh without drift changes nothing. Tags
    that someone added to a resource without tags are drift as well.
    """
    result: Props = {}
    for key, value in inputs.items():
        if key in live and key not in handler.write_only:
            result[key] = _project(handler, key, value, live[key])
        else:
            result[key] = value
    if handler.tagged and not inputs.get("tags") and live.get("tags"):
        result["tags"] = live["tags"]
    return {key: value for key, value in result.items() if value is not None}


def _project(handler: Handler, key: str, value: Any, live: Any) -> Any:
    if is_equal(handler, key, value, live):
        return value
    if isinstance(value, Mapping) and isinstance(live, Mapping) and key not in _WHOLE_MAPS:
        return {k: _project(handler, k, v, live[k]) if k in live else v for k, v in value.items()}
    if (
        isinstance(value, list)
        and isinstance(live, list)
        and len(value) == len(live)
        and key not in handler.unordered
    ):
        return [_project(handler, "", v, item) for v, item in zip(value, live, strict=True)]
    return live


def upper(props: Mapping[str, Any], names: Iterable[str]) -> Props:
    """Return the named properties with the first letter in upper case, as most EC2 and IAM calls need them."""
    return {name[0].upper() + name[1:]: props[name] for name in names if props.get(name) is not None}


def tag_map(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return `[{"Key", "Value"}]` as a map, without the tags that AWS itself sets."""
    return {t["Key"]: t["Value"] for t in tags or [] if not t["Key"].startswith("aws:")}


def tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Return a map of tags as `[{"Key", "Value"}]`."""
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def tag_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return (keys to remove, tags to set) for the change from the old inputs' tags to the new ones'."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    return [k for k in before if k not in after], {k: v for k, v in after.items() if before.get(k) != v}


def listed(value: Any) -> list[Any]:
    """Return a list for an optional list."""
    return list(value or [])


# ------------------------------------------------------------------------------------------------- registry

_HANDLERS: dict[str, Handler] = {}


def serves(cls: type[Handler]) -> type[Handler]:
    """Register the handler under its token (a class decorator)."""
    _HANDLERS[cls.token] = cls()
    return cls


def served() -> Mapping[str, Handler]:
    """Return all handlers by token."""
    return _HANDLERS
