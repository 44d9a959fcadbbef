"""Compare the fixed settings of a stack with the values of its first `up`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return an error message for each setting whose value changed, by key.

    A key on only one side is no change: other settings decide which settings are fixed.
    """
    return {
        key: (
            f"is {format_value(now[key])}, but the stack was created with {format_value(before[key])}, and the setting"
            f" is fixed after the first up. Set it back to {format_value(before[key])}, or create another stack"
        )
        for key in before
        if key in now and now[key] != before[key]
    }


def format_value(value: object) -> str:
    """Return a value in the notation of a stack file."""
    if value in ("", None):
        return "nothing"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def changed_settings_message(run_id: str, keys: Sequence[str]) -> str:
    """Return the message about settings that changed after their run started."""
    return (
        f"run {run_id}: started before {', '.join(keys)} changed, and keeps the earlier values. To start a run with the"
        " new values, set trainyard:training.runId to another name"
    )
