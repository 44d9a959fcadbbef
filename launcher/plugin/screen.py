"""What goes to a person besides the answer: lines on standard error, and a bar where that is a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Final, TextIO

from launcher.plugin.plain import plain
from launcher.workspace.selection import size_in_words

_WIDTH: Final = 30
_EVERY_SECONDS: Final = 0.1


def say(line: str) -> None:
    """One line, which is no part of the answer, and which nobody may be there to read: a terminal that was closed."""
    with suppress(OSError):
        print(plain(line), file=sys.stderr, flush=True)


class Bar:
    """How much of something was done; nothing where nobody looks. A context manager, so that its line ends."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._drawn = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live or (now - self._drawn < _EVERY_SECONDS and done < total):
            return
        self._drawn = now
        full = _WIDTH * done // total if total else _WIDTH
        self._stream.write(
            f"\r{self._what} [{'#' * full}{'.' * (_WIDTH - full)}] {size_in_words(done)} of {size_in_words(total)}"
        )
        self._stream.flush()
