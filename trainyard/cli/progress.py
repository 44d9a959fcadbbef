"""Drop the lines of the engine's output that a user does not need."""

from __future__ import annotations

import re

# `@ updating....` is a heartbeat; `creating (3s)` without a message only says that `created (5s)` will follow.
NOISE = (
    re.compile(r"using pulumi-\S+ from \$PATH"),
    re.compile(r"^@ "),
    re.compile(r"(creating|updating|deleting|refreshing|reading) \(\d+s\)(\[retain\])?\s*$"),
    # A resource of which nothing was to do: no sign before it, no word behind it.
    re.compile(r"^( {4}\S+:\S+ \S+| [ ~]  \S+:\S+ \S+ refresh \([\d.]+s\)) *$"),
    re.compile(r"^ *pulumi:pulumi:Stack \S+ +(\d+ (warnings?|messages?)[; ]*)*$"),
    re.compile(r"^The resources in the stack have been deleted, but the history"),
    # Pulumi prints the program's output again, complete, under "Diagnostics".
    re.compile(r"^ .  ?pulumi:pulumi:Stack \S+ running "),
    re.compile(r"creating \(\d+s\) error: "),
    re.compile(r"^If you want to remove the stack completely"),
)


# The last of the provider's words while it waited stays in the row of what is done.
DONE = re.compile(
    r"(?P<row>^ \S{1,2} +\S+ \S+ (created|deleted)( replacement| original)? \([\d.]+s\)(\[retain\])?) "
    r"(?!error|warning|\[diff)\S.*$"
)
# The engine prints these messages as they come, and again under "Diagnostics".
MESSAGE = re.compile(
    r"^(?P<row> [ +~-]{1,3} +(\S+:\S+ \S+( [a-z ]+?(\([\d.]+s\))?(\[retain\])?)?)?) *"
    r"(?P<message>(warning|(drain|remains) of \S+): .*\S)\s*$"
)
COMPLETE = re.compile(r" (\w+ed|read)( \w+)? \([\d.]+s\)(\[retain\])?$")
HEADING = re.compile(r"^  \S+ \(.+\):$")
# `up` leaves what is retained; before a destroy the drain has ended the run's Job.
KEPT = re.compile(r"^(?P<row> -  \S+ \S+) deleted \([\d.]+s\)\[retain\]\s*$")
DELETED = re.compile(r"^    - (?P<count>\d+) deleted$")
LEAVING = "kept, no longer in the state"


class Filter:
    """Drops noise, repeated blank lines, and headings without content. `command` is the engine's."""

    def __init__(self, command: str = "up") -> None:
        self._command = command
        self._messages: set[str] = set()
        self._kept = 0
        self._held: list[str] = []
        self._trace: list[str] | None = None

    def lines(self, line: str) -> list[str]:
        """Return what to print after `line` (without its end)."""
        if self._trace is not None:
            return self._in_trace(line)
        if any(pattern.search(line) for pattern in NOISE):
            return []
        if line.strip() == "Traceback (most recent call last):":
            self._trace = [line]
            return []
        if line == "" or line == "Diagnostics:" or HEADING.match(line):
            self._hold(line)
            return []
        line = re.sub(r" *\d+ warnings?$", "", line)
        if found := MESSAGE.match(line):
            if found["message"] in self._messages:
                if not COMPLETE.search(found["row"]):
                    return []
                line = found["row"]
            self._messages.add(found["message"])
        if done := DONE.match(line):
            line = done["row"]
        if self._command == "up":
            if kept := KEPT.match(line):
                self._kept += 1
                line = f"{kept['row']} {LEAVING}"
            elif (deleted := DELETED.match(line)) and self._kept:
                return [*self._take_held(), *self._sum(int(deleted["count"]))]
        if re.match(r"^\S", line):
            self._held = [held for held in self._held if held == ""]
        return [*self._take_held(), line]

    def _sum(self, deleted: int) -> list[str]:
        """Correct the summary: the engine counts retained resources as deleted."""
        gone, kept = deleted - self._kept, f"    - {self._kept} {LEAVING}"
        return [f"    - {gone} deleted", kept] if gone > 0 else [kept]

    def _in_trace(self, line: str) -> list[str]:
        """Hold a traceback until its last line. The engine interrupts the program when a resource has failed, and that
        traceback does not help.
        """
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
        if HEADING.match(line):
            # Nothing was printed under the heading before.
            self._held = [held for held in self._held if not HEADING.match(held)]
            if self._held[-2:] == ["Diagnostics:", ""]:
                self._held.pop()
        if line or not self._held or self._held[-1]:
            self._held.append(line)
