"""Directories of this machine for files on their way to a store or from it, and what killed trainings left of them.

    trainyard-save-5d0c1a2b3c4d-4711-884213-1f0c9a3e     what for, which machine, process and its start, a number

A process that is killed removes nothing, and in a pod that is begun anew, or on a laptop, its gigabytes would stay. The
name says whose a directory is, from the moment on at which it is there: so a later training can tell whether that
process still runs. Needs no torch.
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
    """The name of a new directory of `process`."""
    return f"trainyard-{use}-{_machine(process)}-{process.pid}-{process.started or '0'}-{uuid4().hex[:8]}"


def folder(place: Path | None, use: Use) -> Path:
    """A new directory of this process in `place`, by default the one for temporary files. Raises OSError."""
    made = (place or Path(tempfile.gettempdir())) / name(use, Process.own())
    made.mkdir(mode=0o700)
    return made


def left_behind(names: Iterable[str], own: Process, start: Callable[[int], str | None]) -> list[str]:
    """Those of the names whose processes were on `own`'s machine and are gone. Pure but for `start`.

    `start` gives the start of the process that has a number now, None where none has. What another machine, another
    container or a machine without /proc made is nobody's to judge from here, and stays.
    """
    if not own.boot:
        return []
    found = []
    for each in sorted(names):
        made = NAME.fullmatch(each)
        if made and made[1] == _machine(own) and start(int(made[2])) != made[3]:
            found.append(each)
    return found


def clear(place: Path | None = None) -> list[str]:
    """Remove what dead processes left in `place`, by default the directory for temporary files. Returns the names.

    What can't be removed, such as another user's, stays and is not named.
    """
    where = place or Path(tempfile.gettempdir())
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(where)
    removed = []
    for each in left_behind(names, Process.own(), start_of):
        shutil.rmtree(where / each, ignore_errors=True)
        if not (where / each).exists():
            removed.append(each)
    return removed


def _machine(process: Process) -> str:
    """Numbers of processes are of one boot of one machine, and there of one container."""
    said = "\n".join((process.host, process.boot, process.namespace))
    return sha256(said.encode()).hexdigest()[:12]
