"""Create a directory of small programs that images have and this machine may lack (`local/nodes/programs`)."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from local.nodes.images import SYSTEM_PATH

SOURCES = Path(__file__).with_name("programs")
# Here the hosts file of a pod replaces DNS, and no other nslookup reads it. Not every other ping works
# without CAP_NET_RAW.
ALWAYS = ("nslookup", "ping")
IF_MISSING = ("nc", "wget")
# How `local.nodes.images` starts managers; no command of a pod.
MANAGER = "manager.py"


def wanted(path: str = SYSTEM_PATH) -> list[str]:
    """Return the programs that pods get from this package, because `path` does not have them."""
    return [*ALWAYS, *(name for name in IF_MISSING if shutil.which(name, path=path) is None)]


def make(directory: Path) -> Path:
    """Write the programs into the directory, each with a command that runs it. Return the directory.

    They are copies, because a pod sees this directory but may not see the checkout.
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
    shutil.copyfile(SOURCES / MANAGER, directory / MANAGER)
    return directory
