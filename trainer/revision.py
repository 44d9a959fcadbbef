"""Which state of the project this is: what the image's build was told, or what git says of a checkout."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trainer import contract

CHECKOUT = Path(__file__).parents[1]
LOOK_SECONDS = 10.0
# What may stand in metadata: a hash, a tag or what `git describe` makes of them.
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}")


def revision(environ: Mapping[str, str], checkout: Path = CHECKOUT) -> str | None:
    """A git revision, with "-dirty" behind it where files differ from it; None where nobody knows.

    An image has no .git: its build is told (`TRAINYARD_REVISION` in trainer/Dockerfile). A checkout that was changed is
    told from one that was not by git's own `describe --dirty` (git-scm.com/docs/git-describe). Never fails.
    """
    told = environ.get(contract.REVISION, "")
    if not told and (checkout / ".git").exists():  # and not that of a repository around it
        # Without tags: the whole hash alone.
        command = [
            "git",
            "-C",
            str(checkout),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_SECONDS, check=True)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        told = done.stdout.strip()
    return told if PLAIN.fullmatch(told) else None
