"""Report the progress of builds."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

# The interval of reports without a terminal.
REPORT_SECONDS = 60.0
# The minimum share of the work for an estimate.
ESTIMATE_MINIMUM = 0.03


def time_left(share: float, seconds: float) -> str:
    """Return an estimate such as `about 7 min left`, or "" below ESTIMATE_MINIMUM.

    Args:
        share: How much of the work is done, from 0 to 1.
        seconds: How long that took.
    """
    if share < ESTIMATE_MINIMUM:
        return ""
    left = seconds * (1 - share) / share
    return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"


class Progress:
    """A line of progress: updated in place on a terminal, printed once a minute elsewhere."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._started = self._reported = time.monotonic()

    def start(self, text: str) -> None:
        if self._terminal:
            self.update(text)
        else:
            self._stream.write(f"{self._title}: {text}\n")
            self._stream.flush()

    def update(self, text: str) -> None:
        """Show the current state. Call it about once a second."""
        now = time.monotonic()
        if self._terminal:
            line = f"{self._title}: {text}, {now - self._started:.0f} s"
            # A wrapped line cannot be rewritten.
            self._stream.write(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")
        elif now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._stream.write(f"{self._title}: {text}, {now - self._started:.0f} s\n")
        self._stream.flush()

    def finish(self, text: str) -> None:
        """Show the result. The line stays."""
        self._stream.write(
            f"\r\x1b[2K{self._title}: {text}\n" if self._terminal else f"{self._title}: {text}\n"
        )
        self._stream.flush()
