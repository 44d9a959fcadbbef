"""git for tests: repositories of their own, in which nothing of this machine's settings counts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "n" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "n@example.com" for who in ("AUTHOR", "COMMITTER")},
}


def git(place: Path, *words: str) -> str:
    """What `git` says of this place. Raises subprocess.CalledProcessError where it fails."""
    command = ["git", "-C", str(place), *words]
    environ = {"PATH": os.environ["PATH"], "HOME": str(place), **GIT}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()
