"""Find what was changed or deleted outside of Pulumi, from the event log of a refresh that only previews. Pure.

`find_drift` reads the events; `describe` returns the lines that a user sees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Exit code if something differs. 1 is an error, and 2 an invalid argument.
EXIT_DRIFT = 3
# The engine's options for a preview and an event log. The log needs the variable; Pulumi's Automation API uses both.
PREVIEW = ("--preview-only",)
EVENT_LOG = "--event-log"
EVENT_LOG_VARIABLES = {"PULUMI_DEBUG_COMMANDS": "true"}


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One resource that differs from the state.

    Args:
        resource: Type and name, such as `aws:s3/bucket:Bucket trainyard-dev-models`.
        deleted: It does not exist any more.
        properties: The paths of the properties that differ.
    """

    resource: str
    deleted: bool = False
    properties: tuple[str, ...] = ()


def find_drift(events: Iterable[str]) -> list[Drift]:
    """Return the resources that differ, sorted by type and name.

    Args:
        events: The lines of the engine's event log, one JSON object each. The metadata of a refreshed resource has the
            operation that brings the state up to date: `same`, `update` or `delete`
            (github.com/pulumi/pulumi/sdk/v3@v3.250.0, go/common/apitype/events.go).
    """
    found = []
    for line in events:
        try:
            step: dict[str, Any] = (json.loads(line).get("resOutputsEvent") or {}).get("metadata") or {}
        except ValueError:  # the engine was stopped while it wrote
            continue
        operation = step.get("op")
        if operation not in ("update", "delete"):
            continue
        resource = f"{step.get('type')} {str(step.get('urn')).rpartition('::')[2]}"
        properties = tuple(sorted(step.get("detailedDiff") or step.get("diffs") or ()))
        if operation == "delete":
            found.append(Drift(resource=resource, deleted=True))
        elif properties:
            found.append(Drift(resource=resource, properties=properties))
    return sorted(found, key=lambda drift: drift.resource)


def errors_only(line: str) -> list[str]:
    """Return a line of the engine's output if it is an error."""
    return [line] if "error:" in line else []


def describe(stack: str, drifts: list[Drift]) -> list[str]:
    """Return the lines that report the drift of a stack."""
    if not drifts:
        return [f"stack {stack}: no resource was changed or deleted outside of Pulumi"]
    lines = [
        f"  {each.resource}: {'deleted' if each.deleted else 'changed: ' + ', '.join(each.properties)}"
        for each in drifts
    ]
    were = "resource was" if len(drifts) == 1 else "resources were"
    return [
        f"stack {stack}: {len(drifts)} {were} changed or deleted outside of Pulumi:",
        *lines,
        "`pulumi up --refresh` restores what the settings say; `pulumi refresh` accepts the changes into the state",
    ]
