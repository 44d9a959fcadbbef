"""What goes to a person besides the answer: lines on standard error, and a bar where that is a terminal."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Final, TextIO

from trainyard.workspace.selection import size_in_words

_WIDTH: Final = 30
_LEAST_WIDTH: Final = 5
# Where a terminal does not know its own width (a serial line), that of the first ones.
_USUAL_COLUMNS: Final = 80
# To the beginning of the line, and nothing on it: a shorter one leaves no end of the one before.
_ANEW: Final = "\r\x1b[K"
_EVERY_SECONDS: Final = 0.1


def say(line: str) -> None:
    """One line, which is no part of the answer, and which nobody may be there to read: a terminal that was closed."""
    with suppress(OSError):
        print(plain(line), file=sys.stderr, flush=True)


class Bar:
    """How much of something was done; nothing where nobody looks, or nothing drawn can be taken back (`TERM=dumb`).

    A context manager, so that its line ends.
    """

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._drawn:
            self._stream.write(_ANEW)
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live or (now - self._drawn < _EVERY_SECONDS and done < total):
            return
        self._drawn = now
        self._stream.write(_ANEW + drawn(self._what, done, total, self._columns()))
        self._stream.flush()

    def _columns(self) -> int:
        """Asked each time: a window may be made narrower meanwhile."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _USUAL_COLUMNS
        except (OSError, ValueError):
            return _USUAL_COLUMNS


def drawn(what: str, done: int, total: int, columns: int) -> str:
    """One line that a terminal of so many columns does not wrap: with less room no bar, then no sizes, then less."""
    room = columns - 1  # some wrap once the last column is written
    sizes = f"{size_in_words(done)} of {size_in_words(total)}"
    width = min(_WIDTH, room - len(f"{what} [] {sizes}"))
    if width >= _LEAST_WIDTH:
        full = width * done // total if total else width
        return f"{what} [{'#' * full}{'.' * (width - full)}] {sizes}"
    share = f"{100 * done // total if total else 100} %"
    fitting = (each for each in (f"{what} {sizes}", f"{what} {share}", share) if len(each) <= room)
    return next(fitting, "")


def plain(text: str) -> str:
    """In one line, without what moves the cursor or changes colours: who writes a message does not rule a screen."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)
