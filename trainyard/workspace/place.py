"""Put an archive's files where the workers have them: all of it at first, later what has changed. Entry point: `apply`.

A directory inside of that place, on the same file system, holds unfinished files. Each file is put in place by one
rename, so no one sees a part of it. If a process is killed, the next one finishes its work. Files that the job created
or changed stay, or are moved aside if the workspace has something else at their path (`Kept`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainyard.workspace.archive import (
    DIGEST_PREFIX,
    DIRECTORY_MODE,
    EMPTY_DIRECTORY,
    Contents,
    digest_of,
    replace_file,
    unpack,
)
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.ignore import CONTROL_DIRECTORY
from trainyard.workspace.selection import name_problem, parents_of

_STATE: Final = "state.json"
_LOCK: Final = "lock"
_INCOMING: Final = "incoming-"
# Downloads, also of other workers on the same volume.
DOWNLOAD: Final = "download-"
_KEPT: Final = "kept-"
_ABANDONED_SECONDS: Final = 3600


@dataclass(frozen=True)
class Applied:
    """How many files and links were put in place and removed, and where files of the job were moved to."""

    put: int
    removed: int
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """What is in place: the archive's digest, "" while one is being applied, and the contents of its paths.

    A path that may or may not be updated has each of its possible contents.
    """

    digest: str
    contents: dict[str, list[str]]


def placed(into: Path) -> State:
    """Return what is in place. The job can write this record: paths that no archive has make it invalid."""
    try:
        found = json.loads((into / CONTROL_DIRECTORY / _STATE).read_text())
        contents = {path: [str(line) for line in what] for path, what in found["contents"].items()}
        digest = str(found["digest"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return State("", {})
    return State("", {}) if any(map(name_problem, contents)) else State(digest, contents)


def is_whole(into: Path, digest: str) -> bool:
    """Return whether this archive is in place, and none of its files was removed."""
    now = placed(into)
    return now.digest == digest and not _missing(into, now.contents)


def apply(archive: Path, digest: str, into: Path) -> Applied:
    """Put the files of this archive in place.

    If several processes do this on one volume, one works and the others wait. On a file system without locks, each
    does the same work.

    Raises:
        WorkspaceError: The archive is invalid, and nothing was changed; or the file system failed.
    """
    try:
        with _locked(into) as control:
            if is_whole(into, digest):
                return Applied(0, 0)
            with tempfile.TemporaryDirectory(
                prefix=_INCOMING, dir=control, ignore_cleanup_errors=True
            ) as incoming:
                contents = unpack(archive, digest, Path(incoming))
                return _update(Path(incoming), into, control, digest, contents)
    except OSError as error:
        # Names of unfinished files differ at each try.
        where = Path(os.fsdecode(error.filename or into))
        where = into if CONTROL_DIRECTORY in where.parts else where
        raise WorkspaceError(f"workspace: can't write in {where}: {error.strerror or error}") from None


def _update(incoming: Path, into: Path, control: Path, digest: str, new: Contents) -> Applied:
    old, missing = placed(into).contents, _missing(into, new)
    changed = [path for path, what in new.items() if old.get(path) != [what] or path in missing]
    gone = [path for path in old if path not in new]
    known = {path: [*old.get(path, [""]), new[path]] for path in changed}
    _save(control, State("", {**old, **known}))
    kept = Kept(into, control)
    for path in gone:
        _remove(into, path, old[path], kept)
    for path in changed:
        _put(incoming, into, path, known[path], kept)
    # Before the state: of a complete workspace, nobody removes what a killed process left.
    shutil.rmtree(incoming, ignore_errors=True)
    _save(control, State(digest, {path: [what] for path, what in new.items()}))
    return Applied(len(changed), len(gone), tuple(kept.places))


def _missing(into: Path, contents: Iterable[str]) -> set[str]:
    return {path for path in contents if not os.path.lexists(into / path)}


@contextmanager
def _locked(into: Path) -> Iterator[Path]:
    """Yield the directory for unfinished files, with a lock if the file system has locks."""
    control = into / CONTROL_DIRECTORY
    control.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # the user of another worker created it
        control.chmod(DIRECTORY_MODE)
    handle = os.open(control / _LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    try:
        has_lock = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # for example Lustre, mounted without flock
            has_lock = False
        if has_lock:
            for left in control.glob(f"{_INCOMING}*"):
                shutil.rmtree(left, ignore_errors=True)
        for left in control.glob(f"{DOWNLOAD}*"):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        yield control
    finally:
        os.close(handle)


def _save(control: Path, state: State) -> None:
    replace_file(control / _STATE, json.dumps({"digest": state.digest, "contents": state.contents}), 0o664)


def _remove(into: Path, path: str, known: list[str], kept: Kept) -> None:
    """Remove a file of the workspace and directories that become empty. A directory with files of the job stays."""
    if not _has_real_parents(into, path):
        return
    if _is_directory(into / path):
        if known != [EMPTY_DIRECTORY]:
            return
        with suppress(OSError):  # not empty
            os.rmdir(into / path)
    elif is_own(into / path, known):
        with suppress(FileNotFoundError):
            os.unlink(into / path)
    elif os.path.lexists(into / path):
        kept.move(path)
    for parent in (into / path).parents:
        if parent == into:
            return
        try:
            parent.rmdir()
        except OSError:  # not empty
            return


def _has_real_parents(into: Path, path: str) -> bool:
    """Return whether the parents of this path are directories. A link could lead anywhere."""
    return all(_is_directory(into / parent) for parent in parents_of(path))


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _put(incoming: Path, into: Path, path: str, known: list[str], kept: Kept) -> None:
    is_directory = _is_directory(incoming / path)
    for directory in (*parents_of(path), *([path] if is_directory else [])):
        if _is_directory(into / directory):
            continue
        if os.path.lexists(into / directory):  # a file of the job: the workspace's was removed
            kept.move(directory)
        with suppress(FileExistsError):  # from another worker, on the same volume
            os.mkdir(into / directory)
            os.chmod(into / directory, DIRECTORY_MODE)
    if is_directory:
        return
    if EMPTY_DIRECTORY in known and _is_directory(into / path):
        with suppress(OSError):  # not empty
            os.rmdir(into / path)
    if os.path.lexists(into / path) and not is_own(into / path, known):
        kept.move(path)
    os.replace(incoming / path, into / path)


def is_own(place: Path, known: list[str]) -> bool:
    """Return whether an archive put this file or link here, with one of the contents `known`.

    A file that can't be read is not from an archive.
    """
    try:
        mode = os.lstat(place).st_mode
        if stat.S_ISLNK(mode):
            return f"link {os.readlink(place)}" in known
        # Reading a pipe would block.
        digest = digest_of(place).removeprefix(DIGEST_PREFIX) if stat.S_ISREG(mode) else "none"
        return any(line.startswith("file ") and line.endswith(f" {digest}") for line in known)
    except OSError:
        return False


class Kept:
    """Move files of the job aside, each at its own path in a directory in `control`."""

    def __init__(self, into: Path, control: Path) -> None:
        self._into, self._control = into, control
        self._directory: Path | None = None
        self.places: list[str] = []

    def move(self, path: str) -> None:
        """Move the file or directory at this path aside. If `a` and `a/b` are moved, they get two directories."""
        for _ in range(2):
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix=_KEPT, dir=self._control))
                self._directory.chmod(DIRECTORY_MODE)
            place = self._directory / path
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                if not os.path.lexists(place):
                    os.rename(self._into / path, place)
                    self.places.append(str(place.relative_to(self._into)))
                    return
            except FileNotFoundError:  # another worker on the same volume moved it
                return
            except (FileExistsError, NotADirectoryError):
                pass
            self._directory = None
