"""Print what `up` and `down` do: important lines on the screen, all lines in a log.

On a terminal the last row shows the stage, its elapsed time and its state. `OUTPUT` is the stdout of the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

REDRAW_SECONDS = 0.5
CLEAR_ROW = "\r\x1b[K"


def is_live(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a row of the stream can be rewritten in place."""
    return stream.isatty() and environment.get("TERM", "") not in ("", "dumb")


def status_row(stage: str, seconds: float, state: str, columns: int) -> str:
    """Return the last row of a terminal: `Updating  1:05  created 57 of 155`."""
    minutes, rest = divmod(int(seconds), 60)
    text = f"{stage}  {minutes}:{rest:02}  {state}".rstrip()
    # A full row would move the cursor to the next one.
    return text[: max(0, columns - 1)]


class Output:
    """Prints and logs the lines of a command. Several threads may use it."""

    def __init__(self, live: bool | None = None) -> None:
        """`live`: whether there is a status row; by default on a terminal."""
        self.verbose = False
        self._given_live = live
        self._log: BinaryIO | None = None
        self._row: Callable[[], str] | None = None
        self._lock = threading.RLock()

    @property
    def live(self) -> bool:
        """Whether there is a status row."""
        return is_live(sys.stdout, os.environ) if self._given_live is None else self._given_live

    def open_log(self, path: Path, name: str) -> None:
        """Write all following lines to a new file and print its `name`. If the disk is full, there is no file."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._log is not None:
                self._log.close()
            self._log = path.open("wb", buffering=0)
            self.report(f"log: {name}")

    def report(self, line: str) -> None:
        """Print a line at once, also into a pipe."""
        self.detail(line, [line])

    def detail(self, line: str, shown: Sequence[str]) -> None:
        """Log a line; print `shown` of it, or with `verbose` the line itself."""
        with self._lock:
            if self._log is not None:
                try:
                    self._log.write(f"{line}\n".encode(errors="replace"))
                except OSError:
                    self._log.close()
                    self._log = None
            for each in [line] if self.verbose else shown:
                print(f"{CLEAR_ROW}{each}" if self._row else each, flush=True)
            self._draw()

    @contextlib.contextmanager
    def stage(self, name: str, state: Callable[[], str]) -> Iterator[None]:
        """Show a status row meanwhile on a terminal. `state` is called repeatedly."""
        if not self.live:
            yield
            return
        started, ended = time.monotonic(), threading.Event()

        def row() -> str:
            return status_row(name, time.monotonic() - started, state(), shutil.get_terminal_size().columns)

        def redraw() -> None:
            while not ended.wait(REDRAW_SECONDS):
                with self._lock:
                    self._draw()

        self._row = row
        thread = threading.Thread(target=redraw, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._row = None
            print(CLEAR_ROW, end="", flush=True)

    def _draw(self) -> None:
        if self._row is not None:
            print(f"{CLEAR_ROW}{self._row()}", end="", flush=True)


OUTPUT = Output()
