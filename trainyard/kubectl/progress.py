"""Lines on standard error (`say`), the progress bar (`Bar`), and text that is safe for a terminal (`sanitize`)."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Final, TextIO

from trainyard.workspace.errors import format_size

_WIDTH: Final = 30
_MIN_WIDTH: Final = 5
# For a terminal that does not know its width, such as a serial line.
_DEFAULT_COLUMNS: Final = 80
# Return to the start of the line and clear it.
_CLEAR: Final = "\r\x1b[K"
_EVERY_SECONDS: Final = 0.1


def sanitize(text: str) -> str:
    """Return text of the cluster as one line, without control characters: they could rewrite the user's terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)


def say(line: str) -> None:
    """Print one line on standard error, if that is open."""
    with suppress(OSError):
        print(sanitize(line), file=sys.stderr, flush=True)


class Bar:
    """A progress bar, on a terminal that can clear a line (not `TERM=dumb`). A context manager, which clears it."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live or (now - self._drawn < _EVERY_SECONDS and done < total):
            return
        self._drawn = now
        self._stream.write(_CLEAR + render_bar(self._what, done, total, self._columns()))
        self._stream.flush()

    def _columns(self) -> int:
        """Return the present width, which may change."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _DEFAULT_COLUMNS
        except (OSError, ValueError):
            return _DEFAULT_COLUMNS


def render_bar(what: str, done: int, total: int, columns: int) -> str:
    """Return one line that fits into `columns`: with less room without the bar, then without the sizes."""
    room = columns - 1  # some terminals wrap after the last column
    sizes = f"{format_size(done)} of {format_size(total)}"
    width = min(_WIDTH, room - len(f"{what} [] {sizes}"))
    if width >= _MIN_WIDTH:
        full = width * done // total if total else width
        return f"{what} [{'#' * full}{'.' * (width - full)}] {sizes}"
    share = f"{100 * done // total if total else 100} %"
    fitting = (each for each in (f"{what} {sizes}", f"{what} {share}", share) if len(each) <= room)
    return next(fitting, "")
