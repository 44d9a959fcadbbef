"""The git revision of the checkout, for the metadata of models."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
TIMEOUT_SECONDS: Final = 10.0
# A whole hash, of SHA-1 or SHA-256.
PLAIN: Final = re.compile(r"[0-9a-f]{40,64}(-dirty)?")


def revision(checkout: Path) -> str:
    """Return the git revision of a checkout, with "-dirty" if files were changed; UNKNOWN without git. Never fail.

    It uses `git describe --dirty`, as `trainer.train.revision` does (git-scm.com/docs/git-describe). Untracked files do
    not count. The revision is UNKNOWN without a commit, and if git refuses the repository because it belongs to another
    user. A repository around the checkout does not count.
    """
    if not (checkout / ".git").exists():
        return UNKNOWN
    # Without tags, so that the result is the hash.
    words = ("describe", "--always", "--dirty", "--abbrev=64", "--exclude=*")
    command = ["git", "-C", str(checkout), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return UNKNOWN
    described = done.stdout.strip()
    return described if PLAIN.fullmatch(described) else UNKNOWN
