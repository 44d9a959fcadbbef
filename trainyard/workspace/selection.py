"""The entries of a directory that are its workspace, in the order in which they are packed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.ignore import CONTROL_DIRECTORY, GIT_IGNORE, OWN_IGNORE, Rules, in_force, rules_of

DEFAULT_LIMIT_BYTES: Final = 512 * 2**20
_OFFENDERS: Final = 10
_SHOWN: Final = 200
# A file is large by itself that has a twentieth of all bytes.
_SHARE: Final = 20
_LINKS_NAMED: Final = 5
# The number of entries between two progress reports, and the time to search further in a directory that is too large.
_COUNTED: Final = 1000
_CUT_SECONDS: Final = 3.0
# What removes a tree calls itself once for each directory.
MOST_PARTS: Final = 500
# Code and data pack to a third or a tenth; a file of zeros to less than a thousandth.
_LEAST_BOUND: Final = 4 * 2**30
_MOST_TIMES: Final = 1000
_LEAST_MEMBER: Final = 512


@dataclass(frozen=True)
class Entry:
    """A file with its size in bytes, a link with its target, or an empty directory; `path` is in the workspace.

    `inode` and `changed`, its ctime in nanoseconds, are others when its content may be another.
    """

    path: str
    size: int = 0
    executable: bool = False
    target: str = ""
    inode: int = 0
    changed: int = 0
    modified: int = 0
    is_directory: bool = False


class Unfit(WorkspaceError):
    """An entry that can't be sent as it is; what is said of it ends before the name of a file that leaves it out."""


@contextmanager
def naming_ignore_file(root: Path) -> Iterator[None]:
    """Ends what is said of an unfit entry of this workspace."""
    try:
        yield
    except Unfit as error:
        raise WorkspaceError(f"{error} {in_force(root)}") from None


def select(
    root: Path,
    limit: int = DEFAULT_LIMIT_BYTES,
    progress: Callable[[int, int], None] = lambda _files, _bytes: None,
) -> list[Entry]:
    """Return the files, links and empty directories of a workspace, sorted by the bytes of their paths.

    Sockets, pipes and devices are left out. `progress` receives the number and the bytes of the entries so far. A
    directory that is far too large is not searched completely.

    Raises:
        WorkspaceError: The directory does not exist, is empty, has more than `limit` bytes, an unreadable entry, or a
            link that leads out of it.
    """
    root = _found(root)
    walk = _Walk(root, limit, progress)
    with naming_ignore_file(root):
        found = sorted(walk.entries(rules_of(root)), key=lambda entry: os.fsencode(entry.path))
    if all(entry.is_directory for entry in found):
        raise WorkspaceError(
            f"workspace: {root} has no files to send; put your code there, or look at what {OWN_IGNORE} "
            f"or {GIT_IGNORE} leave out"
        )
    if all(_ignore_file(entry.path) for entry in found if not entry.is_directory):
        raise WorkspaceError(f"workspace: {root} has no files to send but what says which are left out")
    out = [entry for entry in found if entry.target and not link_stays_inside(entry.path, entry.target)]
    if out:
        named = ", ".join(f"{entry.path} -> {entry.target}" for entry in out[:_LINKS_NAMED])
        more = f" and {len(out) - _LINKS_NAMED} more" if len(out) > _LINKS_NAMED else ""
        missed = next((entry for entry in out if entry.path in walk.matched_as_directories), None)
        name = missed.path.rpartition("/")[2] if missed else ""
        raise WorkspaceError(
            f"workspace: links lead out of {root}: {named}{more}; copy what they point to, or name them "
            f"in {in_force(root)}"
            + (
                f": a pattern with a slash at its end, such as {name}/, matches no link: write {name}"
                if name
                else ""
            )
        )
    total = sum(entry.size for entry in found)
    if total > limit:
        named = ", ".join(f"{path} {size_in_words(size)}" for path, size in _largest(found, total))
        more = "more than " if walk.is_cut else ""
        raise WorkspaceError(
            f"workspace: {more}{size_in_words(total)} in {len(found)} files, and at most {size_in_words(limit)} are "
            f"sent; name in {in_force(root)} what is not needed; the largest: {named}"
        )
    return found


def _largest(entries: Sequence[Entry], total: int) -> list[tuple[str, int]]:
    """What takes the most room: files that are large by themselves, and directories at the top with all that is small.

    A virtual environment is thousands of files, none of which is worth a word.
    """
    sizes: dict[str, int] = {}
    for entry in entries:
        top, slash, _ = entry.path.partition("/")
        is_large = entry.size * _SHARE >= total
        name = entry.path if is_large or not slash else f"{top}/"
        sizes[name] = sizes.get(name, 0) + entry.size
    by_size = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))
    return [each for each in by_size if each[1]][:_OFFENDERS]


def _found(root: Path) -> Path:
    try:
        if stat.S_ISDIR(root.stat().st_mode):
            return root.resolve()
        what = "is not a directory"
    except FileNotFoundError:
        # A removed current directory still exists for stat(); only resolve() fails.
        what = "is below the current directory, which was removed" if root.exists() else "does not exist"
    except OSError as error:  # also a symbolic link to itself, of which exists() says that it is not there
        what = f"can't be read: {error.strerror}"
    shown = str(root) if len(str(root)) <= _SHOWN else f"{str(root)[:_SHOWN]}..."
    raise WorkspaceError(f"workspace: {shown} {what}; name the directory with your code")


def size_in_words(size: float) -> str:
    """Bytes as a person reads them, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _ignore_file(path: str) -> bool:
    return path.rpartition("/")[2] in (OWN_IGNORE, GIT_IGNORE)


class _Walk:
    """Walk through the directories of a workspace."""

    def __init__(self, root: Path, limit: int, progress: Callable[[int, int], None]) -> None:
        self._root, self._limit, self._progress = root, limit, progress
        self._files = self._bytes = 0
        self._stop_at: float | None = None
        # Whether the walk stopped early, because there are too many bytes.
        self.is_cut = False
        # Links that a pattern for directories would leave out.
        self.matched_as_directories: set[str] = set()

    def entries(self, at_top: Rules) -> Iterator[Entry]:
        """Yield every entry that is not ignored."""
        to_do = [(self._root, b"", at_top)]
        while to_do:
            directory, path, rules = to_do.pop()
            is_empty, entries = True, _listed(directory, path)
            rules = rules.inside(directory, path)
            for entry in entries:
                name = os.fsencode(entry.name)
                inner = path + b"/" + name if path else name
                is_directory = entry.is_dir(follow_symlinks=False)
                if rules.ignores(inner, name, is_directory):
                    continue
                if is_directory and inner.count(b"/") + 1 >= MOST_PARTS:
                    raise Unfit(
                        f"workspace: {os.fsdecode(inner)[:40]}... is {MOST_PARTS} directories or more in one another; "
                        f"name it in"
                    )
                if is_directory:
                    is_empty = False
                    to_do.append((Path(entry.path), inner, rules.within(inner, name)))
                    continue
                for found in _one(entry, os.fsdecode(inner)):
                    is_empty = False
                    self._count(found)
                    if found.target and rules.ignores(inner, name, True):
                        self.matched_as_directories.add(found.path)
                    yield found
                if self.is_cut:
                    return
            if is_empty and path:
                yield Entry(os.fsdecode(path), is_directory=True)

    def _count(self, entry: Entry) -> None:
        """Count an entry. Beyond the limit, go on for a short time to find the largest directories."""
        self._files += 1
        self._bytes += entry.size
        if self._files % _COUNTED == 0:
            self._progress(self._files, self._bytes)
            if self._bytes > self._limit:
                now = time.monotonic()
                self._stop_at = now + _CUT_SECONDS if self._stop_at is None else self._stop_at
                self.is_cut = now >= self._stop_at


def _listed(directory: Path, path: bytes) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as listed:
            return list(listed)
    except OSError as error:
        raise unreadable(os.fsdecode(path) or str(directory), error) from None


def _one(entry: os.DirEntry[str], path: str) -> Iterator[Entry]:
    try:
        if entry.is_symlink():
            yield Entry(path, target=os.readlink(entry.path))
            return
        known = entry.stat(follow_symlinks=False)
    except OSError as error:
        raise unreadable(path, error) from None
    if stat.S_ISREG(known.st_mode):
        executable = bool(known.st_mode & 0o100)
        yield Entry(path, known.st_size, executable, "", known.st_ino, known.st_ctime_ns, known.st_mtime_ns)


def unreadable(path: str, error: OSError) -> Unfit:
    """What is said of an entry that can't be read."""
    if isinstance(error, FileNotFoundError):
        return Unfit(
            f"workspace: {path} was removed while it was read; try again when nothing changes the directory, or name "
            f"it in"
        )
    return Unfit(f"workspace: can't read {path}: {error.strerror}; make it readable or name it in")


def unpacked_bound(size: int) -> int:
    """How many bytes an archive of `size` bytes may make, so that a small one can't fill a disk."""
    return max(_LEAST_BOUND, _MOST_TIMES * size)


def counted(size: int) -> int:
    """What a member of `size` bytes counts of that bound: an empty one is not for nothing."""
    return max(size, _LEAST_MEMBER)


def name_problem(name: str) -> str:
    """What is wrong with the name of a workspace's member, "" where nothing is."""
    if problem := path_problem(name):
        return problem
    if name.split("/")[0] == CONTROL_DIRECTORY:
        return f"{CONTROL_DIRECTORY} is where a worker keeps what it knows of the workspace"
    return ""


def path_problem(name: str) -> str:
    """What is wrong with the name of any archive's member, "" where it stays where the archive is unpacked."""
    parts = name.split("/")
    if not name or "\0" in name:
        return "an empty name" if not name else "a NUL in its name"
    if name.startswith("/"):
        return "an absolute path"
    if any(part in ("", ".", "..") for part in parts):
        return 'a ".", ".." or empty part in its path'
    if len(parts) > MOST_PARTS:
        return f"{MOST_PARTS} directories or more in one another"
    return ""


def link_stays_inside(name: str, target: str) -> bool:
    """Whether a symbolic link of this name with this target stays in the tree, wherever the tree's other links lead.

    Only its first parts may be "..": what comes after a name may follow another link before it goes up.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    ups = 0
    rest = [part for part in target.split("/") if part not in ("", ".")]
    while rest and rest[0] == "..":
        rest.pop(0)
        ups += 1
    return ".." not in rest and ups <= name.count("/")
