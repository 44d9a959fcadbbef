"""Local directories for files on the way to or from a store, and the cleanup after killed processes. Needs no torch.

    trainyard-save-5d0c1a2b3c4d-4711-884213-1f0c9a3e     use, node, process id and its start, random number

A killed process removes nothing, and its gigabytes would stay in a pod that restarts, or on a laptop. The name of a
directory identifies its process, so that a later run can check whether that process still runs.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal
from uuid import uuid4

from trainer.process import Process, start_of

Use = Literal["restore", "save", "model"]
NAME = re.compile(r"trainyard-(?:restore|save|model)-([0-9a-f]{12})-([0-9]+)-([0-9]+)-[0-9a-f]{8}")


def name(use: Use, process: Process) -> str:
    """Return the name of a new directory of `process`."""
    return f"trainyard-{use}-{_node_id(process)}-{process.pid}-{process.started or '0'}-{uuid4().hex[:8]}"


def folder(place: Path | None, use: Use) -> Path:
    """Create a directory of this process in `place`, by default the one for temporary files. Raise OSError."""
    made = (place or Path(tempfile.gettempdir())) / name(use, Process.own())
    made.mkdir(mode=0o700)
    return made


def find_abandoned(names: Iterable[str], own: Process, start: Callable[[int], str | None]) -> list[str]:
    """Return the names whose processes ran on the node of `own` and are gone, according to `start` (see `start_of`).

    Directories of another node, of another container, or of a node without /proc are left alone.
    """
    if not own.boot:
        return []
    found = []
    for each in sorted(names):
        made = NAME.fullmatch(each)
        if made and made[1] == _node_id(own) and start(int(made[2])) != made[3]:
            found.append(each)
    return found


def clear(place: Path | None = None) -> list[str]:
    """Remove directories of dead processes from `place`, by default the one for temporary files. Return their names.

    Those that can't be removed, such as those of another user, are skipped.
    """
    where = place or Path(tempfile.gettempdir())
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(where)
    removed = []
    for each in find_abandoned(names, Process.own(), start_of):
        shutil.rmtree(where / each, ignore_errors=True)
        if not (where / each).exists():
            removed.append(each)
    return removed


def _node_id(process: Process) -> str:
    """Return a hash of the node, its boot and the container, in which process ids are unique."""
    return sha256("\n".join((process.host, process.boot, process.namespace)).encode()).hexdigest()[:12]
