"""What a directory was packed to: while nothing in it changes, its digest is known without reading it again.

As Git's index does it: a file whose size, inode and times of change are those of before is the file of before. The time
of the last change of the inode (ctime) can't be set by hand. One that changed as late as the packing itself might
change again in the same tick of the file system's clock, so that such a directory is not remembered.
https://git-scm.com/docs/racy-git
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from trainyard.workspace import archive as packing
from trainyard.workspace.archive import Archive, check_digest, pack
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.selection import Entry, select

# File systems count in ticks of up to 2 s (FAT).
TICK_NANOSECONDS: Final = 2_000_000_000
_NAMES: Final = ("digest", "size", "content", "files")


@dataclass(frozen=True)
class Remembered(Archive):
    """An archive that is not there: what was packed of this directory before. It is packed when it is opened."""

    root: Path
    limit: int

    def open(self) -> BinaryIO:
        """Packs the directory again. Raises WorkspaceError as `pack` does, and where it is another one by now."""
        again = pack(self.root, self.limit, self.file.parent)
        if again.digest != self.digest:
            again.file.unlink()
            raise WorkspaceError(
                f"workspace: {self.root} changed while it was sent; try again when nothing writes it"
            )
        again.file.rename(self.file)
        return super().open()


def packed(
    root: Path,
    limit: int,
    directory: Path,
    memory: Path,
    progress: Callable[[int, int], None],
    searched: Callable[[int, int], None] = lambda _files, _bytes: None,
) -> Archive:
    """The archive of this directory, a `Remembered` one if it is in the directory `memory`.

    `searched` receives the number and the bytes of the files so far.

    Raises WorkspaceError as `pack` does.
    """
    began = time.time_ns()
    entries = select(root, limit, searched)
    mark, record = _mark(root, entries), memory / f"{_digest(os.fsencode(root.resolve()))}.json"
    if known := _read(record, mark):
        return Remembered(directory / "workspace.tar.zst", *known, root=root, limit=limit)
    archive = pack(root, limit, directory, progress, entries)
    old = all(entry.changed < began - TICK_NANOSECONDS for entry in entries)
    # A record in the workspace itself would change it. A directory that is a circle of links is no memory.
    if old and not Path(os.path.realpath(memory)).is_relative_to(root.resolve()):
        _write(record, mark, archive)
    return archive


def _mark(root: Path, entries: Sequence[Entry]) -> str:
    """What decides the archive's bytes, and all that changes with a file."""
    made = (zstandard.__version__, packing.FORMAT, os.fspath(root.resolve()))
    return _digest(repr((made, entries)).encode("utf-8", "surrogateescape"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(record: Path, mark: str) -> tuple[str, int, int, int] | None:
    """What is remembered, None for nothing, something else, or something broken."""
    try:
        found: Any = json.loads(record.read_bytes())
        if found["mark"] != mark:
            return None
        check_digest(found["digest"])
        return (str(found["digest"]), *(int(found[name]) for name in _NAMES[1:]))  # type: ignore[return-value]
    except (OSError, ValueError, KeyError, TypeError, WorkspaceError):
        return None


def _write(record: Path, mark: str, archive: Archive) -> None:
    """Whole or not at all; where nothing can be written, nothing is remembered."""
    known = {"mark": mark, **{name: getattr(archive, name) for name in _NAMES}}
    try:
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=record.parent)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(known, file)
            os.replace(name, record)
        except OSError:
            os.unlink(name)
    except OSError:
        return
