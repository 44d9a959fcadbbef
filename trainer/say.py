"""Lines of log. Needs no torch."""

from __future__ import annotations

from typing import TextIO


def say(line: str, stream: TextIO | None = None) -> None:
    """One line, at once, and in one piece: torchrun's processes write unbuffered into one stream."""
    print(f"{line}\n", end="", file=stream, flush=True)
