"""Resources from what the engine writes down: a preview (`pulumi preview --json`) or a state (`pulumi stack export`).

The marks of special values are the engine's own: github.com/pulumi/pulumi, sdk/go/common/resource/sig and
sdk/go/common/resource/plugin/rpc.go. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from trainyard.policies.model import UNKNOWN, Resource, Stack

SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
HIDDEN_VALUE: Final = "1b47061264138c4ac30d75fd1eb44270"
REFERENCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
# What a preview has for a value that it can't know, by the value's kind.
UNKNOWN_MARKS: Final = frozenset(
    {
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-ac77-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)
HIDDEN: Final = "[secret]"
GONE: Final = frozenset(
    {"delete", "discard", "delete-replaced", "discard-replaced", "remove-pending-replace"}
)


class ReadingError(Exception):
    """A document that is neither a preview nor a state."""


def plain(value: Any) -> Any:
    """A value as the program gave it; what is not known, or secret, is `UNKNOWN`."""
    if isinstance(value, str):
        return UNKNOWN if value in UNKNOWN_MARKS or value == HIDDEN else value
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, Mapping):
        # The wire knows one kind of number.
        return int(value) if isinstance(value, float) and value.is_integer() else value
    kind = value.get(SIGNATURE)
    if kind == HIDDEN_VALUE:
        return plain(json.loads(value["plaintext"])) if "plaintext" in value else UNKNOWN
    if kind == REFERENCE:
        return plain(value.get("id") or value.get("urn"))
    # Keys with two underscores are the provider's notes.
    return {key: plain(entry) for key, entry in value.items() if not str(key).startswith("__")}


def resource(recorded: Mapping[str, Any]) -> Resource:
    """One resource of a preview's step or of a state."""
    urn = str(recorded["urn"])
    references = recorded.get("propertyDependencies") or {}
    return Resource(
        type=str(recorded["type"]),
        name=urn.rpartition("::")[2],
        urn=urn,
        properties=plain(recorded.get("inputs") or {}),
        references={name: frozenset(urns or ()) for name, urns in references.items()},
        identity=recorded.get("id") or None,
    )


def of_preview(document: Mapping[str, Any]) -> Stack:
    """The resources that a stack will have.

    Raises:
        ReadingError: the document is no preview.
    """
    if not isinstance(document.get("steps"), list):
        raise ReadingError("this is no preview: it has no list named 'steps' (pulumi preview --json)")
    kept = (step["newState"] for step in document["steps"] if step["op"] not in GONE and "newState" in step)
    return Stack(resource(each) for each in kept)


def of_state(document: Mapping[str, Any]) -> Stack:
    """The resources that a stack has.

    Raises:
        ReadingError: the document is no state.
    """
    deployment = document.get("deployment", document)
    if not isinstance(deployment, Mapping) or not isinstance(deployment.get("resources"), list):
        raise ReadingError("this is no state: it has no list named 'resources' (pulumi stack export)")
    return Stack(resource(each) for each in deployment["resources"] if not each.get("delete"))


def of_file(text: str) -> Stack:
    """The resources of a stored preview or state.

    Raises:
        ReadingError: it is neither.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ReadingError(f"this is no JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise ReadingError("this is no preview and no state: it must be a JSON object")
    return of_preview(document) if "steps" in document else of_state(document)
