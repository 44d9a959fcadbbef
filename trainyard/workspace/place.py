"""An archive's files at the place where the workers have them: all of it at first, later what has changed.

A directory of its own inside of that place, on the same file system, holds what is not ready: a file comes in by one
rename, and so nobody sees half of it. Whoever is killed in between, the next one ends that work. What the job itself
made or changed stays, or is moved aside where the workspace now has something else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
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
    unpack,
)
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.ignore import CONTROL_DIRECTORY
from trainyard.workspace.selection import name_problem

_STATE: Final = "state.json"
_LOCK: Final = "lock"
_INCOMING: Final = "incoming-"
# What is being downloaded; another worker's on the same volume, too.
DOWNLOAD: Final = "download-"
_ABANDONED_SECONDS: Final = 3600


@dataclass(frozen=True)
class Applied:
    """How many files and links were put in place, how many removed, and where is now what the job had there."""

    put: int
    removed: int
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """What is in place: the archive's digest, "" while one is being applied, and what is at each path of it.

    Of a path that may or may not have been brought up to date, it is `either` of its contents.
    """

    digest: str
    contents: Contents


def placed(into: Path) -> State:
    """What is in place here now. The job can write what says so: a path that no archive has is not believed."""
    try:
        found = json.loads((into / CONTROL_DIRECTORY / _STATE).read_text())
        contents = {str(path): str(what) for path, what in found["contents"].items()}
        digest = str(found["digest"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return State("", {})
    return State("", {}) if any(map(name_problem, contents)) else State(digest, contents)


def is_whole(into: Path, digest: str) -> bool:
    """Whether this archive is in place here, and nothing of it is gone since."""
    now = placed(into)
    return now.digest == digest and not _missing(into, now.contents)


def apply(archive: Path, digest: str, into: Path) -> Applied:
    """Brings the files of this archive here. Raises WorkspaceError; before anything in place was touched, unless the
    file system is at fault.

    Of several that do this at once on one volume, one works and the others wait, where the file system has locks;
    where it has none, each does the same.
    """
    try:
        with _working(into) as control:
            if is_whole(into, digest):
                return Applied(0, 0)
            before = placed(into)
            incoming = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=control))
            try:
                contents = unpack(archive, digest, incoming)
                return _bring(incoming, into, control, before, State(digest, contents))
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
    except OSError as error:
        # Names in the directory for what is not ready are others at each try.
        where = Path(os.fsdecode(error.filename or into))
        where = into if CONTROL_DIRECTORY in where.parts else where
        raise WorkspaceError(f"workspace: can't write in {where}: {error.strerror or error}") from None


def _bring(incoming: Path, into: Path, control: Path, before: State, after: State) -> Applied:
    old, new = before.contents, after.contents
    missing = _missing(into, new)
    changed = [path for path, what in new.items() if old.get(path) != what or path in missing]
    gone = [path for path in old if path not in new]
    known = {path: either(old.get(path, ""), new[path]) for path in changed}
    _save(control, State("", {**old, **known}))
    kept = Kept(into, control)
    for path in gone:
        _remove(into, path, old[path], kept)
    for path in changed:
        _put(incoming, into, path, known[path], kept)
    _save(control, after)
    return Applied(len(changed), len(gone), tuple(kept.places))


def _missing(into: Path, contents: Contents) -> set[str]:
    return {path for path in contents if not os.path.lexists(into / path)}


@contextmanager
def _working(into: Path) -> Iterator[Path]:
    """The directory for what is not ready, alone where the file system has locks."""
    control = into / CONTROL_DIRECTORY
    control.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # another worker's user has made it
        control.chmod(DIRECTORY_MODE)
    handle = os.open(control / _LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    try:
        alone = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # such as Lustre that was mounted without flock
            alone = False
        if alone:
            for left in control.glob(f"{_INCOMING}*"):
                shutil.rmtree(left, ignore_errors=True)
        for left in control.glob(f"{DOWNLOAD}*"):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        yield control
    finally:
        os.close(handle)


def _save(control: Path, state: State) -> None:
    handle, name = tempfile.mkstemp(prefix=_STATE, dir=control)
    with os.fdopen(handle, "w") as file:
        os.fchmod(handle, 0o664)
        json.dump({"digest": state.digest, "contents": state.contents}, file)
    os.replace(name, control / _STATE)


def _remove(into: Path, path: str, known: str, kept: Kept) -> None:
    """Removes a file of the workspace, and its directories that are empty then. What is a directory now, stays.

    An empty directory of the workspace goes if it is empty still.
    """
    if not _within_directories(into, path):
        return
    if _is_directory(into / path):
        if known != EMPTY_DIRECTORY:
            return
        with suppress(OSError):  # the job has something in it
            os.rmdir(into / path)
    elif is_own(into / path, known):
        with suppress(FileNotFoundError):
            os.unlink(into / path)
    elif os.path.lexists(into / path):
        kept.take(path)
    for parent in (into / path).parents:
        if parent == into:
            return
        try:
            parent.rmdir()
        except OSError:  # not empty
            return


def _within_directories(into: Path, path: str) -> bool:
    """Whether what leads to this path are directories: a link there might lead anywhere."""
    directories = path.split("/")[:-1]
    ends = range(1, len(directories) + 1)
    return all(_is_directory(into / "/".join(directories[:end])) for end in ends)


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _put(incoming: Path, into: Path, path: str, known: str, kept: Kept) -> None:
    is_directory = _is_directory(incoming / path)
    directories = path.split("/")[: None if is_directory else -1]
    for end in range(1, len(directories) + 1):
        directory = "/".join(directories[:end])
        if _is_directory(into / directory):
            continue
        if os.path.lexists(into / directory):  # the job's: a file of the workspace is removed by now
            kept.take(directory)
        with suppress(FileExistsError):  # another worker's, on the same volume
            os.mkdir(into / directory)
            os.chmod(into / directory, DIRECTORY_MODE)
    if is_directory:
        return
    if EMPTY_DIRECTORY in known and _is_directory(into / path):
        with suppress(OSError):  # the job has something in it
            os.rmdir(into / path)
    if os.path.lexists(into / path) and not is_own(into / path, known):
        kept.take(path)
    os.replace(incoming / path, into / path)


_PREFIX: Final = "kept-"
# Stands in no name and no target of a link.
_OR: Final = "\0"


def either(*contents: str) -> str:
    """What may be at a path while an archive is being applied: one of these. It is never equal to one of them."""
    return _OR + _OR.join(dict.fromkeys(each for one in contents for each in one.split(_OR) if each))


def is_own(place: Path, known: str) -> bool:
    """Whether what is here is still what an archive put here: `known`, or one of several (`either`).

    What can't be read is another one: an archive's files can be.
    """
    found = [each.split(" ", 1) for each in known.split(_OR) if each]
    try:
        mode = os.lstat(place).st_mode
        if stat.S_ISLNK(mode):
            return ["link", os.readlink(place)] in found
        digests = {rest.rpartition(" ")[2] for kind, rest in found if kind == "file"}
        # A pipe would be waited for.
        return stat.S_ISREG(mode) and digest_of(place).removeprefix(DIGEST_PREFIX) in digests
    except OSError:
        return False


class Kept:
    """What one archive's application moves aside, each at its own path in a directory in `control`."""

    def __init__(self, into: Path, control: Path) -> None:
        self._into, self._control = into, control
        self._directory: Path | None = None
        self.places: list[str] = []

    def take(self, path: str) -> None:
        """Moves what is at this path aside, a directory with all that is in it."""
        place = self._room(path)
        try:
            os.rename(self._into / path, place)
        except FileNotFoundError:  # another worker of the same volume has
            return
        self.places.append(str(place.relative_to(self._into)))

    def _room(self, path: str) -> Path:
        """A place where nothing is yet: of `a` and `a/b`, both of which may be taken, the second gets another one."""
        for _ in range(2):
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._control))
                self._directory.chmod(DIRECTORY_MODE)
            place = self._directory / path
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                self._directory = None
                continue
            if not os.path.lexists(place):
                break
            self._directory = None
        return place
