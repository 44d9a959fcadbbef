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
    re.compile(r"^If you want to remove the stack completely"),
)


class Filter:
    """Drops noise, repeated blank lines, and headings under which nothing is left."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def lines(self, line: str) -> list[str]:
        """What to print now that `line` (without its end) has come."""
        if any(pattern.search(line) for pattern in NOISE):
            return []
        if line == "" or line == "Diagnostics:" or re.match(r"^  pulumi:pulumi:Stack \(\S+\):$", line):
            self._hold(line)
            return []
        line = re.sub(r" *\d+ warnings?$", "", line)
        if re.match(r"^\S", line):
            self._held = [held for held in self._held if held == ""]
        shown = [*self._held, line]
        self._held = []
        return shown

    def _hold(self, line: str) -> None:
        if line or not self._held or self._held[-1]:
            self._held.append(line)
