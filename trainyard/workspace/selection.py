"""Select the entries of a directory that belong to its workspace (`select`), and check names in archives."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from trainyard.workspace.errors import WorkspaceError, format_size
from trainyard.workspace.ignore import CONTROL_DIRECTORY, GIT_IGNORE, OWN_IGNORE, effective_file, rules_of

DEFAULT_LIMIT_BYTES: Final = 512 * 2**20
_MAX_LARGEST: Final = 10
_SHOWN: Final = 200
# A file with at least a twentieth of all bytes is named by itself.
_SHARE: Final = 20
_MAX_LINKS_NAMED: Final = 5
# The number of entries between two progress reports.
_REPORT_EVERY: Final = 1000
# A directory of ten times the limit is not searched completely.
_CUT_RATIO: Final = 10
# Functions that delete a tree call themselves once for each directory.
MAX_DEPTH: Final = 500
# Code and data compress to a third or a tenth; zeros to less than a thousandth.
_MIN_UNPACKED: Final = 4 * 2**30
_MAX_RATIO: Final = 1000
_MIN_MEMBER: Final = 512


class Entry(NamedTuple):
    """A file with its size in bytes, a link with its target, or an empty directory; `path` is in the workspace.

    `inode` and `changed`, the ctime in nanoseconds, change with the content.
    """

    path: str
    size: int = 0
    executable: bool = False
    target: str = ""
    inode: int = 0
    changed: int = 0
    modified: int = 0
    is_directory: bool = False


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
    root = _resolve(root)
    walk = _Walk(root, limit, progress)
    found = [entry for _, entry in sorted(walk.entries())]
    files = [entry.path.rpartition("/")[2] for entry in found if not entry.is_directory]
    if all(name in (OWN_IGNORE, GIT_IGNORE) for name in files):
        raise WorkspaceError(
            f"workspace: {root} has no files to send; put your code there, or check {OWN_IGNORE} and {GIT_IGNORE}"
        )
    _check_links(root, found)
    total = sum(entry.size for entry in found)
    if total > limit:
        named = ", ".join(f"{path} {format_size(size)}" for path, size in _largest(found, total))
        more = "more than " if walk.is_cut else ""
        raise WorkspaceError(
            f"workspace: {more}{format_size(total)} in {len(found)} files, and the limit is {format_size(limit)}; "
            f"name unneeded files in {effective_file(root)}; the largest: {named}"
        )
    return found


def is_ignored(root: Path, path: str) -> bool:
    """Return whether this file, or a directory above it, is ignored. Raise WorkspaceError."""
    root = _resolve(root)
    rules, directory = rules_of(root), b""
    parts = os.fsencode(path).split(b"/")
    for at, name in enumerate(parts, 1):
        rules = rules.inside(root / os.fsdecode(directory), directory)
        directory = b"/".join(parts[:at])
        if rules.ignores(directory, name, (root / os.fsdecode(directory)).is_dir()):
            return True
    return False


def _check_links(root: Path, entries: Sequence[Entry]) -> None:
    out = [entry for entry in entries if entry.target and not link_stays_inside(entry.path, entry.target)]
    if out:
        named = ", ".join(f"{entry.path} -> {entry.target}" for entry in out[:_MAX_LINKS_NAMED])
        more = f" and {len(out) - _MAX_LINKS_NAMED} more" if len(out) > _MAX_LINKS_NAMED else ""
        raise WorkspaceError(
            f"workspace: links lead out of {root}: {named}{more}; copy their targets, or name the links in "
            f"{effective_file(root)} without a slash at the end, which matches directories only"
        )


def _largest(entries: Sequence[Entry], total: int) -> list[tuple[str, int]]:
    """Return the largest files, and the top directories with their small files, such as a virtual environment."""
    sizes: dict[str, int] = {}
    for entry in entries:
        top, slash, _ = entry.path.partition("/")
        is_large = entry.size * _SHARE >= total
        name = entry.path if is_large or not slash else f"{top}/"
        sizes[name] = sizes.get(name, 0) + entry.size
    by_size = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return [item for item in by_size if item[1]][:_MAX_LARGEST]


def _resolve(root: Path) -> Path:
    try:
        if stat.S_ISDIR(root.stat().st_mode):
            return root.resolve()
        problem = "is not a directory"
    except FileNotFoundError:  # also a removed current directory, which still exists for stat()
        problem = "does not exist"
    except OSError as error:  # for example a symbolic link to itself
        problem = f"can't be read: {error.strerror}"
    shown = str(root) if len(str(root)) <= _SHOWN else f"{str(root)[:_SHOWN]}..."
    raise WorkspaceError(f"workspace: {shown} {problem}; name the directory with your code")


class _Walk:
    def __init__(self, root: Path, limit: int, progress: Callable[[int, int], None]) -> None:
        self._root, self._limit, self._progress = root, limit, progress
        self._files = self._bytes = 0
        # Whether the walk stopped early, because there are too many bytes.
        self.is_cut = False

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield every entry that is not ignored, with the bytes of its path."""
        to_do = [(os.fsencode(self._root), b"", rules_of(self._root))]
        while to_do and not self.is_cut:
            directory, path, rules = to_do.pop()
            if path.count(b"/") + 1 >= MAX_DEPTH:
                shown = os.fsdecode(path)[:40]
                raise unfit(self._root, f"{shown}... has {MAX_DEPTH} nested directories or more;")
            is_empty, entries = True, self._scan(directory, path)
            rules = rules.inside(Path(os.fsdecode(directory)), path)
            for entry in entries:
                inner = path + b"/" + entry.name if path else entry.name
                is_directory = entry.is_dir(follow_symlinks=False)
                if rules.ignores(inner, entry.name, is_directory):
                    continue
                if is_directory:
                    is_empty = False
                    to_do.append((entry.path, inner, rules))
                elif (found := self._entry(entry, os.fsdecode(inner))) is not None:
                    is_empty = False
                    self._count(found)
                    yield inner, found
                if self.is_cut:
                    return
            if is_empty and path:
                yield path, Entry(os.fsdecode(path), is_directory=True)

    def _scan(self, directory: bytes, path: bytes) -> list[os.DirEntry[bytes]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except OSError as error:
            raise unreadable(self._root, os.fsdecode(path or directory), error) from None

    def _entry(self, entry: os.DirEntry[bytes], path: str) -> Entry | None:
        """Return the entry for a file or link, None for a socket, pipe or device."""
        try:
            if entry.is_symlink():
                return Entry(path, target=os.fsdecode(os.readlink(entry.path)))
            known = entry.stat(follow_symlinks=False)
        except OSError as error:
            raise unreadable(self._root, path, error) from None
        if not stat.S_ISREG(known.st_mode):
            return None
        executable = bool(known.st_mode & 0o100)
        return Entry(path, known.st_size, executable, "", known.st_ino, known.st_ctime_ns, known.st_mtime_ns)

    def _count(self, entry: Entry) -> None:
        self._files += 1
        self._bytes += entry.size
        if self._files % _REPORT_EVERY == 0:
            self._progress(self._files, self._bytes)
            self.is_cut = self._bytes > _CUT_RATIO * self._limit


def unfit(root: Path, problem: str) -> WorkspaceError:
    """Return the error for an entry that can't be sent, which the user can name in an ignore file."""
    return WorkspaceError(f"workspace: {problem} name it in {effective_file(root)}")


def unreadable(root: Path, path: str, error: OSError) -> WorkspaceError:
    """Return the error for an entry that can't be read."""
    if isinstance(error, FileNotFoundError):
        return unfit(
            root, f"{path} was removed while it was read; try again when nothing changes the directory, or"
        )
    return unfit(root, f"can't read {path}: {error.strerror}; make it readable or")


def max_unpacked_size(size: int) -> int:
    """Return the limit of the unpacked size of an archive of `size` bytes, so that a small one can't fill a disk."""
    return max(_MIN_UNPACKED, _MAX_RATIO * size)


def counted_size(size: int) -> int:
    """Return how many bytes of that limit a member of `size` bytes uses. An empty one uses some, too."""
    return max(size, _MIN_MEMBER)


def name_problem(name: str) -> str:
    """Return what is wrong with the name of a workspace's member, "" for a valid one."""
    if problem := path_problem(name):
        return problem
    if name.split("/")[0] == CONTROL_DIRECTORY:
        return f"{CONTROL_DIRECTORY} is reserved for the worker's record of the workspace"
    return ""


def path_problem(name: str) -> str:
    """Return what is wrong with the name of an archive's member, "" if it stays in the target directory."""
    parts = name.split("/")
    if not name or "\0" in name:
        return "a NUL in its name" if name else "an empty name"
    if name.startswith("/"):
        return "an absolute path"
    if any(part in ("", ".", "..") for part in parts):
        return 'a ".", ".." or empty part in its path'
    return f"{MAX_DEPTH} nested directories or more" if len(parts) > MAX_DEPTH else ""


def parents_of(path: str) -> list[str]:
    """Return the directories of a path in the workspace, the outer ones first."""
    return [path[:at] for at, letter in enumerate(path) if letter == "/"]


def link_stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link stays in the tree, wherever other links of the tree lead.

    Only the first parts of its target may be "..": after a name, another link could be followed before going up.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return ".." not in parts[ups:] and ups <= name.count("/")
