"""Read resources from a preview (`pulumi preview --json`) or a state (`pulumi stack export`); `read()` takes both.

The markers of special values are the engine's own: github.com/pulumi/pulumi, sdk/go/common/resource/sig and
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
# What a preview has for an unknown value; each type of value has its own.
UNKNOWN_MARKERS: Final = frozenset(
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
DELETING_STEPS: Final = frozenset(
    {"delete", "discard", "delete-replaced", "discard-replaced", "remove-pending-replace"}
)


class SnapshotError(Exception):
    """A document is neither a preview nor a state."""


def plain(value: Any) -> Any:
    """Return a value as the program set it. An unknown or secret value is `UNKNOWN`."""
    if isinstance(value, str):
        return UNKNOWN if value in UNKNOWN_MARKERS or value == HIDDEN else value
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, Mapping):
        # The engine's protocol has one type of number.
        return int(value) if isinstance(value, float) and value.is_integer() else value
    kind = value.get(SIGNATURE)
    if kind == HIDDEN_VALUE:
        return plain(json.loads(value["plaintext"])) if "plaintext" in value else UNKNOWN
    if kind == REFERENCE:
        return plain(value.get("id") or value.get("urn"))
    # Keys with two underscores are notes of the provider.
    return {key: plain(entry) for key, entry in value.items() if not str(key).startswith("__")}


def resource(recorded: Mapping[str, Any]) -> Resource:
    """Return a resource of a preview's step or of a state."""
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


def stack_of(document: Mapping[str, Any]) -> Stack:
    """Return the resources that a stack will have after a preview, or has in a state.

    Raises:
        SnapshotError: the document is neither.
    """
    if isinstance(steps := document.get("steps"), list):
        kept = (each for each in steps if each["op"] not in DELETING_STEPS and "newState" in each)
        return Stack(resource(each["newState"]) for each in kept)
    deployment = document.get("deployment", document)
    if isinstance(deployment, Mapping) and isinstance(recorded := deployment.get("resources"), list):
        return Stack(resource(each) for each in recorded if not each.get("delete"))
    raise SnapshotError("it has no list `steps` (pulumi preview --json) or `resources` (pulumi stack export)")


def read(text: str) -> Stack:
    """Return the resources of a stored preview or state; Raises as `stack_of`."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SnapshotError(f"it is not JSON ({error}); it must be a preview or a state") from error
    return stack_of(document if isinstance(document, Mapping) else {})
