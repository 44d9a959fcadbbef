"""Which actions each role's sessions used and were denied: a policy is to grant no more than it must.

Kept in `logs/role-calls.json` of the home, so that it can be read when the emulator has ended: by role the actions
that its policies named at its last call, and every action that it used or was denied, with how often.
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

# A pair that is new is written at once, counts alone at most so often.
WRITE_SECONDS = 2.0


class Calls:
    """Counts of (role, action, decision); safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._policies: dict[str, tuple[str, ...]] = {}
        self._file: Path | None = None
        self._written = 0.0

    def keep_in(self, file: Path | None) -> None:
        """From now on keep the counts in a file (None: in none), beginning with nothing."""
        with self._lock:
            self._clear()
            self._file = file
            self._write()

    def _clear(self) -> None:
        self._counts.clear()
        self._policies.clear()

    def add(self, role: str, action: str, granted: bool, documents: Iterable[Mapping[str, Any]]) -> None:
        """Note one permission that a call of a role's session needed; `documents` are the role's policies."""
        key = (role, action, "used" if granted else "denied")
        with self._lock:
            self._policies[role] = actions_of(documents)
            self._counts[key] += 1
            if self._counts[key] == 1 or time.monotonic() - self._written >= WRITE_SECONDS:
                self._write()

    def by_role(self) -> dict[str, dict[str, Any]]:
        """`{role: {"granted": [action, ...], "used": {action: count}, "denied": {action: count}}}`."""
        with self._lock:
            return self._by_role()

    def _by_role(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {
            role: {"granted": list(actions), "used": {}, "denied": {}}
            for role, actions in sorted(self._policies.items())
        }
        for (role, action, decision), count in sorted(self._counts.items()):
            found[role][decision][action] = count
        return found

    def _write(self) -> None:
        if self._file is not None:
            write_atomically(self._file, json.dumps(self._by_role(), indent=1), 0o600)
            self._written = time.monotonic()


def actions_of(documents: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The actions that the documents' statements allow, as they are written there."""
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
