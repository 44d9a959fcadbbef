"""Which state of the project a stack is deployed from: what its models' metadata say of the program and the trainer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
LOOK_SECONDS: Final = 10.0
# A whole hash, of SHA-1 or SHA-256.
PLAIN: Final = re.compile(r"[0-9a-f]{40,64}(-dirty)?")


def revision(checkout: Path) -> str:
    """The git revision of a checkout, with "-dirty" behind it where files differ from it; UNKNOWN without git.

    As `trainer.revision` has it of a checkout, by git's own `describe --dirty` (git-scm.com/docs/git-describe): files
    that git does not know make nothing dirty. A repository around the checkout, one that git refuses, as somebody
    else's, and one without a commit are none. Never fails.
    """
    if not (checkout / ".git").exists():
        return UNKNOWN
    # Without tags: the whole hash alone.
    words = ("describe", "--always", "--dirty", "--abbrev=64", "--exclude=*")
    command = ["git", "-C", str(checkout), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return UNKNOWN
    told = done.stdout.strip()
    return told if PLAIN.fullmatch(told) else UNKNOWN
