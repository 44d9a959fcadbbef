"""The directory of small programs that some images have and this machine may not (`local/nodes/programs`)."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from local.nodes.images import SYSTEM_PATH

SOURCES = Path(__file__).with_name("programs")
# No other nslookup reads the hosts file of pods, which is DNS here. No other ping works without CAP_NET_RAW everywhere.
ALWAYS = ("nslookup", "ping")
IF_MISSING = ("nc", "wget")


def wanted(path: str = SYSTEM_PATH) -> list[str]:
    """The programs that pods get from us, as this machine has none on `path`."""
    return [*ALWAYS, *(name for name in IF_MISSING if shutil.which(name, path=path) is None)]


def make(directory: Path) -> Path:
    """Write them there, each with a command that runs it; the directory.

    Copies, as a pod sees this directory and may not see the checkout.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in wanted():
        source = directory / f"{name}.py"
        shutil.copyfile(SOURCES / source.name, source)
        command = directory / name
        command.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(source))} "$@"\n'
        )
        command.chmod(0o755)
    return directory
