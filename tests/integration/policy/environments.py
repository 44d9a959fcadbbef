"""Python environments of checkov and of the policy pack, apart from the project's own, in the cache of tools.

A lock file names their packages with hashes; its second line is the command that wrote it.
`python -m tests.integration.policy.environments` installs them all: the live tests of an ordinary user run in a
network of their own, from which no package index is reached.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from local.tools import cache_directory
from local.tools.build import locked
from local.tools.progress import Progress
from trainyard.cli.engine import ROOT

# Names of the environments, each with its lock.
LOCKS = {name: Path(__file__).with_name(f"{name}.lock") for name in ("checkov", "policy-pack")}
UV = ROOT / ".venv" / "bin" / "uv"


class EnvironmentFailed(Exception):
    """An environment could not be installed."""


def environment(name: str) -> Path:
    """The directory of one of `LOCKS`, with its programs in `bin`; installed where it is missing.

    Raises:
        EnvironmentFailed: it could not be installed.
    """
    lock = LOCKS[name]
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:8]
    cache = cache_directory()
    directory = cache / "tools" / f"{name}-{digest}"
    complete = directory / "complete"
    if not complete.exists():
        progress = Progress(name)
        with locked(cache / "locks" / f"{directory.name}.lock", progress):
            if not complete.exists():
                progress.start(f"installing what {lock.name} names")
                _install(name, directory, lock)
                # Written last, so that an interrupted installation starts again.
                complete.touch()
                progress.finish("installed")
    return directory


def _install(name: str, directory: Path, lock: Path) -> None:
    python = directory / "bin" / "python"
    shutil.rmtree(directory, ignore_errors=True)
    steps = (
        [str(UV), "venv", "--quiet", "--python", sys.executable, str(directory)],
        [str(UV), "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(lock)],
    )
    for step in steps:
        answer = subprocess.run(step, capture_output=True, text=True)
        if answer.returncode != 0:
            raise EnvironmentFailed(f"{name} could not be installed: {' '.join(answer.stderr.split())}")


def main() -> int:
    """Install every environment."""
    try:
        for name in LOCKS:
            environment(name)
    except EnvironmentFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
