"""Describe the exit code of a process. Pure."""

from __future__ import annotations

import signal
from typing import Final

_SIGNAL_BASE: Final = 128
_HINTS: Final = {
    signal.SIGKILL: "often out of memory",
    signal.SIGBUS: "often /dev/shm is full",
}
_SHELL_CODES: Final = {126: "command not executable", 127: "command not found"}
OUT_OF_MEMORY: Final = "OOMKilled"


def meaning(code: int | None, reason: str = "") -> str:
    """Return the meaning of an exit code, "" if it has no common meaning.

    Args:
        code: The exit code of a container or process. As in shells, it is 128 plus the signal's number after a signal.
        reason: The `reason` of a terminated container from the kubelet. `Error` adds no information.
    """
    if reason == OUT_OF_MEMORY:
        return f"{OUT_OF_MEMORY}: out of memory"
    shown = "" if reason == "Error" else reason
    return ", ".join(each for each in (shown, _describe(code)) if each)


def _describe(code: int | None) -> str:
    if code is None or code in _SHELL_CODES:
        return _SHELL_CODES.get(code, "") if code is not None else ""
    try:
        number = signal.Signals(code - _SIGNAL_BASE)
    except ValueError:
        return ""
    hint = _HINTS.get(number)
    return f"{number.name}, {hint}" if hint else number.name
