"""Compare the settings that are fixed after a stack's first `up` with the ones that it was made with. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return each setting that has another value now, by its key, with what is wrong and what to do.

    A key that only one side has is no difference: the settings that are fixed depend on the others.
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
    """Return a value as a stack file has it."""
    if value in ("", None):
        return "nothing"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def late_line(run_id: str, keys: Sequence[str]) -> str:
    """Return what a person reads of settings that were changed after their run was started."""
    return (
        f"run {run_id}: was started before {', '.join(keys)} changed, and keeps its values. Set"
        " trainyard:training.runId to another name to start a run with the new ones"
    )
