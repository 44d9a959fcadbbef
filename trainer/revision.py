"""The git revision of the code: from the build of the image, or from git in a checkout."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trainer import contract

CHECKOUT = Path(__file__).parents[1]
GIT_TIMEOUT_SECONDS = 10.0
# What metadata may contain: a hash, a tag, or the output of `git describe`.
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}")


def revision(environ: Mapping[str, str], checkout: Path = CHECKOUT) -> str | None:
    """Return the git revision, with the suffix "-dirty" if files differ from it; None if it is unknown.

    An image has no .git, so its build sets `TRAINYARD_REVISION` (trainer/Dockerfile). In a checkout, `git describe
    --dirty` finds changes (git-scm.com/docs/git-describe). This never fails.
    """
    found = environ.get(contract.REVISION, "")
    if not found and (checkout / ".git").exists():  # not the revision of a repository around it
        # Without tags, so that this is the full hash.
        command = [
            "git",
            "-C",
            str(checkout),
            *["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        found = done.stdout.strip()
    return found if PLAIN.fullmatch(found) else None
