"""Remember the digest of a directory, so that an unchanged one is not packed again. The entry point is `pack_cached`.

As in git's index, a file is unchanged if its size, inode and times are. The ctime can't be set by a user. A file that
changed during the packing might change again within the resolution of the file system's clock; such a directory is not
remembered. https://git-scm.com/docs/racy-git
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

from trainyard.workspace import archive as archives
from trainyard.workspace.archive import Archive, check_digest, pack
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.selection import Entry, select

# The coarsest resolution of a file system's times is 2 s (FAT).
TICK_NANOSECONDS: Final = 2_000_000_000
_FIELDS: Final = ("digest", "size", "content", "files")


@dataclass(frozen=True)
class CachedArchive(Archive):
    """An archive whose digest is known. It is packed again when it is opened."""

    root: Path
    limit: int

    def open(self) -> BinaryIO:
        """Pack the directory again. Raise WorkspaceError as `pack` does, and if the directory has changed."""
        again = pack(self.root, self.limit, self.file.parent)
        if again.digest != self.digest:
            again.file.unlink()
            raise WorkspaceError(
                f"workspace: {self.root} changed while it was sent; try again when nothing writes it"
            )
        again.file.rename(self.file)
        return super().open()


def pack_cached(
    root: Path,
    limit: int,
    directory: Path,
    cache: Path,
    progress: Callable[[int, int], None],
    searched: Callable[[int, int], None] = lambda _files, _bytes: None,
) -> Archive:
    """Return the archive of this directory, a CachedArchive if the directory `cache` has its digest.

    `searched` receives the number and the bytes of the files so far.

    Raises:
        WorkspaceError: As `pack`.
    """
    began = time.time_ns()
    entries = select(root, limit, searched)
    mark, record = _mark(root, entries), cache / f"{_digest(os.fsencode(root.resolve()))}.json"
    if known := _read(record, mark):
        return CachedArchive(directory / "workspace.tar.zst", *known, root=root, limit=limit)
    archive = pack(root, limit, directory, progress, entries)
    is_old = all(entry.changed < began - TICK_NANOSECONDS for entry in entries)
    # A record in the workspace itself would change it.
    if is_old and not Path(os.path.realpath(cache)).is_relative_to(root.resolve()):
        _write(record, mark, archive)
    return archive


def _mark(root: Path, entries: Sequence[Entry]) -> str:
    """Return a digest of everything that determines the archive, and of the files' inodes and times."""
    return _digest(
        json.dumps((zstandard.__version__, archives.FORMAT, os.fspath(root.resolve()), entries)).encode()
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(record: Path, mark: str) -> tuple[str, int, int, int] | None:
    """Return the recorded fields, None for no, another or a damaged record."""
    try:
        found: Any = json.loads(record.read_bytes())
        if found["mark"] != mark:
            return None
        check_digest(found["digest"])
        return (str(found["digest"]), *(int(found[name]) for name in _FIELDS[1:]))  # type: ignore[return-value]
    except (OSError, ValueError, KeyError, TypeError, WorkspaceError):
        return None


def _write(record: Path, mark: str, archive: Archive) -> None:
    """Write the record completely or not at all. Ignore errors."""
    known = {"mark": mark, **{name: getattr(archive, name) for name in _FIELDS}}
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
