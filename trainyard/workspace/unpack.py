"""An archive into an empty directory, after its digest was found right; nothing in it leads out of there."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from pathlib import Path
from typing import IO, Any, Final

import zstandard

from trainyard.workspace.errors import Refused, WorkspaceError
from trainyard.workspace.heads import Member
from trainyard.workspace.members import counted, link_stays_inside, name_problem, unpacked_bound
from trainyard.workspace.pack import DIGEST_PREFIX

_CHUNK: Final = 2**20
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# More memory than this no archive of ours needs to be read (zstd's own limit of its command line).
_WINDOW: Final = 2**27
# The group of the pod (fsGroup) may write: the user of the workers need not be the one who unpacks.
FILE_MODE: Final = 0o664
DIRECTORY_MODE: Final = 0o775
_KINDS: Final = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}
EMPTY_DIRECTORY: Final = "directory -"
# What a path holds: "file <mode> <sha256>", "link <target>" or EMPTY_DIRECTORY.
Contents = dict[str, str]


def check_digest(digest: str) -> str:
    """The hexadecimal digits of a digest. Raises WorkspaceError for what is none."""
    if not _DIGEST.fullmatch(digest):
        raise WorkspaceError(f"digest: {digest[:100]!r} should be {DIGEST_PREFIX} and 64 hexadecimal digits")
    return digest.removeprefix(DIGEST_PREFIX)


def digest_of(file: Path | io.BufferedReader) -> str:
    """Return the digest of a file, or of an open file from its position."""
    if not isinstance(file, Path):
        return DIGEST_PREFIX + hashlib.file_digest(file, "sha256").hexdigest()
    with file.open("rb") as opened:
        return DIGEST_PREFIX + hashlib.file_digest(opened, "sha256").hexdigest()


def verify(file: Path, digest: str) -> None:
    """Raises WorkspaceError where the file is not what the digest says."""
    check_digest(digest)
    found = digest_of(file)
    if found != digest:
        raise WorkspaceError(f"archive: digest is {found} and should be {digest}: it was damaged or replaced")


def unpack(archive: Path, digest: str, into: Path) -> Contents:
    """Verifies the archive, then makes its files and links in this empty directory, and says what it made.

    Raises WorkspaceError for another digest and where there is no room, Refused for a broken archive and the first
    member that is not one of a workspace; the directory then has some of the others.
    """
    verify(archive, digest)
    made: Contents = {}
    links: list[tuple[str, str]] = []
    directories = {""}
    most, unpacked = unpacked_bound(archive.stat().st_size), 0
    try:
        with archive.open("rb") as file:
            reader: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file)
            with tarfile.open(
                fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape", tarinfo=Member
            ) as members:
                for member in members:
                    unpacked += counted(member.size)
                    if unpacked > most:
                        raise Refused(f"archive: unpacks to more than {most} bytes; nothing of it is used")
                    _take(members, member, into, made, links, directories)
    except (tarfile.TarError, zstandard.ZstdError, EOFError, UnicodeError) as error:
        raise Refused(f"archive: broken: {error}; it was not made by kubectl torchrun") from None
    except (ValueError, RecursionError, MemoryError) as error:
        # tarfile of numbers that are none and of heads in a row or without end, and os of names with a NUL
        raise Refused(
            f"archive: broken: {error or 'its heads fill the memory'}; it was not made by kubectl torchrun"
        ) from None
    for path, target in links:  # at last, so that no file is written through one
        _parents(into, path, directories)
        _fresh(into, path, lambda place, target=target: os.symlink(target, place))
    return made


def _take(
    members: tarfile.TarFile,
    member: tarfile.TarInfo,
    into: Path,
    made: Contents,
    links: list[tuple[str, str]],
    directories: set[str],
) -> None:
    path = member.name
    problem = name_problem(path)
    if not problem and path in made:
        problem = "a second member of the same name"
    if not problem and member.type == tarfile.SYMTYPE:
        if link_stays_inside(path, member.linkname):
            made[path] = f"link {member.linkname}"
            links.append((path, member.linkname))
            return
        problem = f"a link out of the workspace, to {member.linkname!r}"
    elif not problem and member.isdir():
        _parents(into, f"{path}/", directories)
        made[path] = EMPTY_DIRECTORY
        return
    elif not problem and member.issparse():
        problem = "a file with holes"
    elif not problem and member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        problem = _KINDS.get(member.type, "neither a file, a link nor a directory")
    if problem:
        raise Refused(f"archive: refused member {path[:200]!r}: {problem}; nothing of it is used")
    content = members.extractfile(member)
    assert content is not None  # noqa: S101 (it is a file)
    _parents(into, path, directories)
    mode = FILE_MODE | (0o111 if member.mode & 0o100 else 0)
    written: list[str] = []
    _fresh(into, path, lambda place: written.append(_write(content, place, mode)))
    made[path] = f"file {mode:o} {written[0]}"


def _parents(into: Path, path: str, made: set[str]) -> None:
    directory = path.rpartition("/")[0]
    if directory in made:
        return
    _parents(into, directory, made)
    try:
        os.mkdir(f"{into}/{directory}")
        os.chmod(f"{into}/{directory}", DIRECTORY_MODE)
    except (FileExistsError, NotADirectoryError):
        raise Refused(f"archive: refused member {path[:200]!r}: it is inside of a file") from None
    except OSError as error:
        raise _no_room(path, error) from None
    made.add(directory)


def _fresh(into: Path, path: str, make: Any) -> None:
    try:
        make(f"{into}/{path}")
    except (FileExistsError, IsADirectoryError):
        raise Refused(f"archive: refused member {path[:200]!r}: there is a directory of this name") from None
    except OSError as error:
        raise _no_room(path, error) from None


def _write(content: IO[bytes], place: str, mode: int) -> str:
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    digest = hashlib.sha256()
    with os.fdopen(handle, "wb", buffering=0) as file:
        os.fchmod(handle, mode)  # whatever the umask
        while data := content.read(_CHUNK):
            view = memoryview(data)
            while view:  # a raw file may take less
                view = view[file.write(view) :]
            digest.update(data)
    return digest.hexdigest()


def _no_room(path: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(f"workspace: can't write {path[:200]!r}: {error.strerror}")
