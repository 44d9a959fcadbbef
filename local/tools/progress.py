"""What a person sees while a tool is built: one line per tool, kept up to date on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

# Without a terminal a build that lasts minutes says this often that it is still going on.
QUIET_SECONDS = 60.0


class Progress:
    """One line. On a terminal it is rewritten in place; elsewhere it appears at the start and the end."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._started = self._said = time.monotonic()

    def start(self, text: str) -> None:
        """First words."""
        if self._terminal:
            self.update(text)
        else:
            self._stream.write(f"{self._title}: {text}\n")
            self._stream.flush()

    def update(self, text: str) -> None:
        """Called about once a second while work goes on."""
        now = time.monotonic()
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{self._title}: {text}, {now - self._started:.0f} s")
        elif now - self._said >= QUIET_SECONDS:
            self._said = now
            self._stream.write(f"{self._title}: {text}, {now - self._started:.0f} s\n")
        self._stream.flush()

    def finish(self, text: str) -> None:
        """Last words; the line stays."""
        self._stream.write(
            f"\r\x1b[2K{self._title}: {text}\n" if self._terminal else f"{self._title}: {text}\n"
        )
        self._stream.flush()


class Silent(Progress):
    """Says nothing."""

    def __init__(self) -> None:
        super().__init__("")

    def start(self, text: str) -> None:
        """Nothing."""

    def update(self, text: str) -> None:
        """Nothing."""

    def finish(self, text: str) -> None:
        """Nothing."""
