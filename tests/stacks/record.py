"""What is kept of a stack's life that went well: when, of which commit, and how long each of its commands took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.sweeps.plan import commit
from trainyard.cli.engine import ROOT

LIVES = ROOT / "docs" / "lives"


class Times:
    """Seconds of each command of one life, and the commit that it began with."""

    def __init__(self) -> None:
        self.commit = commit()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, command: str) -> Iterator[None]:
        """Time a command; one that fails is not noted."""
        began = time.monotonic()
        yield
        self.seconds[command] = round(time.monotonic() - began, 1)

    def keep(self, stack: str) -> Path:
        """Write `docs/lives/<stack>.json`; returns its path. Only for a life that has shown all it had to."""
        document = {
            "stack": stack,
            "commit": self.commit,
            "processors": os.cpu_count(),
            "seconds": self.seconds,
        }
        LIVES.mkdir(parents=True, exist_ok=True)
        path = LIVES / f"{stack}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        return path
