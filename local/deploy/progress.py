"""What of the engine's output a person needs: what was made, what went wrong, how long it took."""

from __future__ import annotations

import re

# `@ updating....` is a heartbeat; `creating (3s)` without a message only says that `created (5s)` will follow.
NOISE = (
    re.compile(r"using pulumi-\S+ from \$PATH"),
    re.compile(r"^@ "),
    re.compile(r"(creating|updating|deleting|refreshing|reading) \(\d+s\)\s*$"),
    re.compile(r"^ *pulumi:pulumi:Stack \S+ +(\d+ (warnings?|messages?)[; ]*)*$"),
    re.compile(r"^The resources in the stack have been deleted, but the history"),
    # What the program printed is told again, whole, under "Diagnostics".
    re.compile(r"^ .  ?pulumi:pulumi:Stack \S+ running "),
    re.compile(r"creating \(\d+s\) error: "),
    re.compile(r"^If you want to remove the stack completely"),
)


class Filter:
    """Drops noise, repeated blank lines, and headings under which nothing is left."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._trace: list[str] | None = None

    def lines(self, line: str) -> list[str]:
        """What to print now that `line` (without its end) has come."""
        if self._trace is not None:
            return self._in_trace(line)
        if any(pattern.search(line) for pattern in NOISE):
            return []
        if line.strip() == "Traceback (most recent call last):":
            self._trace = [line]
            return []
        if line == "" or line == "Diagnostics:" or re.match(r"^  pulumi:pulumi:Stack \(\S+\):$", line):
            self._hold(line)
            return []
        line = re.sub(r" *\d+ warnings?$", "", line)
        if re.match(r"^\S", line):
            self._held = [held for held in self._held if held == ""]
        return [*self._take_held(), line]

    def _in_trace(self, line: str) -> list[str]:
        """A traceback is held until its last line: the engine ends the program by an interrupt when a resource has
        failed, and that one tells a person nothing."""
        held = [*(self._trace or []), line]
        indent = len(held[0]) - len(held[0].lstrip())
        if line.strip() and not line.startswith(" " * (indent + 1)):
            self._trace = None
            return [] if line.strip() == "KeyboardInterrupt" else [*self._take_held(), *held]
        self._trace = held
        return []

    def _take_held(self) -> list[str]:
        held, self._held = self._held, []
        return held

    def _hold(self, line: str) -> None:
        if line or not self._held or self._held[-1]:
            self._held.append(line)
