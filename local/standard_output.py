"""Run a command line so that an error of its standard output is one line. Entry point: `run()`.

This module imports little, because shell completion runs it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, Final

# The exit code of a shell for a program that SIGPIPE ended.
CLOSED_PIPE: Final = 141


class StandardOutputError(Exception):
    """Standard output can't be written. It is no OSError, which handlers would report for a file or the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror or error}")
        self.is_closed_pipe = isinstance(error, BrokenPipeError)


class _File(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise StandardOutputError(error) from error


def run(main: Callable[[], int]) -> int:
    """Run a command line and return its exit code. A closed pipe, as of `| head`, is no error and has no message."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        print("error: standard output: is closed. Nothing was done", file=sys.stderr)
        return 1
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_File(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except StandardOutputError as error:
        # Python writes the rest of the output at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if error.is_closed_pipe:
            return CLOSED_PIPE
        print(f"error: {error}", file=sys.stderr)
        return 1
