"""The program `trainyard` of `pip install`: it runs the command line of the checkout around the working directory.

The commands deploy a checkout: its stack files, its program and its images. Entry point: `entry()`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NoReturn

# A file that every checkout has, and nothing else.
_MARK: Final = Path("trainyard", "cli", "__main__.py")


def checkout(directory: Path) -> Path | None:
    """Return the checkout that holds the directory, None if there is none."""
    return next((each for each in (directory, *directory.parents) if (each / _MARK).is_file()), None)


def entry() -> NoReturn:
    """Run the command line in the environment of the checkout."""
    here = Path.cwd()
    root = checkout(here)
    if root is None:
        sys.exit(
            f"error: {here}: neither this directory nor one above it is a checkout of Trainyard. Change to one"
        )
    python = root / ".venv" / "bin" / "python"
    if not python.exists():
        sys.exit(f"error: {root}: the checkout has no environment yet. Run `make environment` there")
    environment = {**os.environ, "PYTHONPATH": str(root), "TRAINYARD_STARTED": "yes"}
    words = [str(python), "-P", "-m", "trainyard.cli", *sys.argv[1:]]
    os.execve(python, words, environment)  # noqa: S606  (the same program, of the checkout)
