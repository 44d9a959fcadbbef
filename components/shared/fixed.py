"""Compare the fixed settings of a stack with the values of its first `up`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return an error message for each setting whose value changed, by key.

    A key on only one side is no difference: other settings decide which settings are fixed.
    """
    return {
        key: (
            f"is {shown(now[key])}, and the stack was made with {shown(before[key])}; it is fixed after the first up."
            f" Set it back to {shown(before[key])}, or make another stack with {shown(now[key])}"
        )
        for key in before
        if key in now and now[key] != before[key]
    }


def shown(value: object) -> str:
    """Return a value in the notation of a stack file."""
    if value in ("", None):
        return "nothing"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def late_line(run_id: str, keys: Sequence[str]) -> str:
    """Return the message about settings that changed after their run started."""
    return (
        f"run {run_id}: was started before {', '.join(keys)} changed, and keeps its values. Set"
        " trainyard:training.runId to another name to start a run with the new ones"
    )
