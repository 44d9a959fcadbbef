"""A log of the actions that each role's sessions used and were denied. It shows where a policy grants too much.

The log is `logs/role-calls.json` in the home, so it can be read after the emulator has stopped. For each role it has
the actions that its policies named at its last call, and every action that was used or denied, with its count.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from local.aws.policy import as_list
from local.home import write_atomically

# A new pair is written at once. Changed counts are written at most once per this interval.
WRITE_SECONDS = 2.0


class Calls:
    """Counts of (role, action, decision). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._policies: dict[str, tuple[str, ...]] = {}
        self._file: Path | None = None
        self._written = 0.0

    def keep_in(self, file: Path | None) -> None:
        """Start with empty counts, and write them to a file from now on. With None, write no file."""
        with self._lock:
            self._counts.clear()
            self._policies.clear()
            self._file = file
            self._write()

    def add(self, role: str, action: str, granted: bool, documents: Iterable[Mapping[str, Any]]) -> None:
        """Count one permission that a call of a role's session needed. `documents` are the role's policies."""
        key = (role, action, "used" if granted else "denied")
        with self._lock:
            self._policies[role] = actions_of(documents)
            self._counts[key] += 1
            if self._counts[key] == 1 or time.monotonic() - self._written >= WRITE_SECONDS:
                self._write()

    def by_role(self) -> dict[str, dict[str, Any]]:
        """Return `{role: {"granted": [action, ...], "used": {action: count}, "denied": {action: count}}}`."""
        with self._lock:
            found: dict[str, dict[str, Any]] = {
                role: {"granted": list(actions), "used": {}, "denied": {}}
                for role, actions in sorted(self._policies.items())
            }
            for (role, action, decision), count in sorted(self._counts.items()):
                found[role][decision][action] = count
            return found

    def _write(self) -> None:
        if self._file is not None:
            write_atomically(self._file, json.dumps(self.by_role(), indent=1), 0o600)
            self._written = time.monotonic()


def actions_of(documents: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the actions that the documents' statements allow, as written there."""
    return tuple(
        sorted(
            {
                str(action)
                for document in documents
                for statement in as_list(document.get("Statement"))
                if statement.get("Effect") == "Allow"
                for action in as_list(statement.get("Action"))
            }
        )
    )


calls = Calls()
