"""What the exit code of a process means, in words. Pure."""

from __future__ import annotations

import signal
from typing import Final

_SIGNALLED: Final = 128
_HINTS: Final = {
    signal.SIGKILL: "often out of memory",
    signal.SIGBUS: "often /dev/shm is full",
}
_SHELL: Final = {126: "the command can't be run", 127: "the command is not there"}
OUT_OF_MEMORY: Final = "OOMKilled"


def meaning(code: int | None, reason: str = "") -> str:
    """Return what an exit code means, "" where it means nothing by itself.

    Args:
        code: The exit code of a container or process, as shells count it: 128 and the number of the signal.
        reason: The kubelet's `reason` of a terminated container. `Error` says nothing.
    """
    if reason == OUT_OF_MEMORY:
        return f"{OUT_OF_MEMORY}: out of memory"
    said = "" if reason == "Error" else reason
    return ", ".join(each for each in (said, _of(code)) if each)


def _of(code: int | None) -> str:
    if code is None or code in _SHELL:
        return _SHELL.get(code, "") if code is not None else ""
    try:
        number = signal.Signals(code - _SIGNALLED)
    except ValueError:
        return ""
    hint = _HINTS.get(number)
    return f"{number.name}, {hint}" if hint else number.name
