"""Pack a directory into one archive, a tar.zst (`pack`), and unpack it into an empty directory (`unpack`).

An archive depends only on names, contents, links and executable bits: the same workspace gives the same bytes, and so
the same digest, on every machine with the same version of zstandard. An archive that exists under its digest need not
be sent again. A directory has a member of its own only if it is empty.

`pack_cached` remembers the digest of a directory, so that an unchanged one is not packed again. As in git's index, a
file is unchanged if its size, inode and times are. The ctime can't be set by a user. A file that changed during the
packing might change again within the resolution of the file system's clock; such a directory is not remembered.
https://git-scm.com/docs/racy-git
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import zstandard

from trainyard.workspace.errors import Damaged, Refused, WorkspaceError, format_size
from trainyard.workspace.selection import (
    DEFAULT_LIMIT_BYTES,
    Entry,
    counted_size,
    link_stays_inside,
    max_unpacked_size,
    name_problem,
    parents_of,
    select,
    unfit,
    unreadable,
)

# A higher level makes code 5 % smaller and takes 50 % longer.
_LEVEL: Final = 2
# Beside the thread that reads. Any number from 1 on gives the same bytes, 0 gives others.
_THREADS: Final = 2
_CHUNK: Final = 2**20
# Everything except the files that determines the bytes of an archive. A change here changes every digest.
FORMAT: Final = (3, _LEVEL, _THREADS)
FILE_MODE: Final = 0o644
EXECUTABLE_MODE: Final = 0o755
DIGEST_PREFIX: Final = "sha256:"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# They change with the content of a file.
_CHANGING_FIELDS: Final = ("st_size", "st_mtime_ns", "st_ctime_ns")
# The limits of a plain tar header.
_SHORT_NAME: Final = 100
_SMALL_FILE: Final = 8**11
# The limit of zstd's own command line. No archive of this module needs more memory.
_WINDOW: Final = 2**27
# The group of the pod (fsGroup) may write: the workers can have another user.
UNPACKED_FILE_MODE: Final = 0o664
DIRECTORY_MODE: Final = 0o775
_KINDS: Final = {
    **{tarfile.LNKTYPE: "a hard link", tarfile.FIFOTYPE: "a pipe"},
    **{tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"},
}
EMPTY_DIRECTORY: Final = "directory -"
# What a path holds: "file <mode> <sha256>", "link <target>" or EMPTY_DIRECTORY.
Contents = dict[str, str]
# A path or a link's target of Linux has at most 4096 bytes; extended attributes come in addition.
_MAX_HEADER_BYTES: Final = 2**20
_IN_MEMORY: Final = frozenset(
    {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
# The coarsest resolution of a file system's times is 2 s (FAT).
TICK_NANOSECONDS: Final = 2_000_000_000
_FIELDS: Final = {"digest": str, "size": int, "content": int, "files": int}


@dataclass(frozen=True)
class Archive:
    """A packed workspace. `size` is that of the archive, `content` that of its files, both in bytes."""

    file: Path
    digest: str
    size: int
    content: int
    files: int

    def open(self) -> BinaryIO:
        return self.file.open("rb")


def pack(
    root: Path,
    limit: int = DEFAULT_LIMIT_BYTES,
    directory: Path | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    entries: Sequence[Entry] | None = None,
) -> Archive:
    """Pack the workspace of this directory into a new file, which the caller removes.

    Args:
        root: The directory.
        limit: The limit of its bytes.
        directory: The directory of the new file.
        progress: Receives the packed bytes and all bytes.
        entries: The entries of the workspace, if they are known.

    Raises:
        WorkspaceError: As `select`, or a file changed while it was read. Then no file is left.
    """
    entries = select(root, limit) if entries is None else entries
    total = sum(entry.size for entry in entries)
    try:
        handle, name = tempfile.mkstemp(".tar.zst", "workspace-", directory)
    except OSError as error:
        raise WorkspaceError(f"workspace: can't create the archive: {error}") from None
    place, base, done = Path(name), root.resolve(), 0
    compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=_THREADS, write_checksum=True)
    try:
        with os.fdopen(handle, "wb") as file, compressor.stream_writer(file, closefd=False) as stream:
            for entry in entries:
                _add(base, entry, stream)
                done += entry.size
                progress(done, total)
            stream.write(bytes(2 * tarfile.BLOCKSIZE))
        archive = Archive(place, digest_of(place), place.stat().st_size, total, len(entries))
        unpacked = max_unpacked_size(archive.size)
        if sum(counted_size(entry.size) for entry in entries) > unpacked:
            raise WorkspaceError(
                f"workspace: {format_size(total)} compress to {format_size(archive.size)}, which workers unpack to "
                f"at most {format_size(unpacked)}; create files of zeros in the job itself"
            )
        return archive
    except BaseException as error:
        place.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WorkspaceError(f"workspace: can't write the archive {place}: {error.strerror}") from None
        raise


def header(
    path: str, size: int = 0, mode: int = FILE_MODE, target: str = "", *, is_directory: bool = False
) -> bytes:
    """Return the header of one member. Long names and names that are not UTF-8 get a pax header before it."""
    if not (target or is_directory) and len(path) < _SHORT_NAME and path.isascii() and size < _SMALL_FILE:
        return _plain_header(path, size, mode)
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = size, mode, 0
    if target:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
    if is_directory:
        member.type, member.mode = tarfile.DIRTYPE, EXECUTABLE_MODE
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _plain_header(path: str, size: int, mode: int) -> bytes:
    """Return the same header as tarfile for most members, in a tenth of the time."""
    name = path.encode().ljust(_SHORT_NAME, b"\0")
    block = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0        0" % (name, mode, 0, 0, size, 0)
    block = block.ljust(257, b"\0") + b"ustar\x0000"
    return block[:148] + b"%06o\0" % sum(block) + block[155:].ljust(357, b"\0")


def _add(root: Path, entry: Entry, stream: Any) -> None:
    if entry.target or entry.is_directory:
        stream.write(header(entry.path, target=entry.target, is_directory=entry.is_directory))
        return
    try:
        # Do not follow a file that was replaced by a link, nor wait for a pipe.
        handle = os.open(f"{root}/{entry.path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(root, entry.path, error) from None
    try:
        if not _copy(handle, entry, stream):
            raise unfit(root, f"{entry.path} changed while it was read; try again when nothing writes it, or")
    except OSError as error:
        raise unreadable(root, entry.path, error) from None
    finally:
        os.close(handle)


def _copy(handle: int, entry: Entry, stream: Any) -> bool:
    """Add a file to the archive. Return False if it changed meanwhile."""
    known = os.fstat(handle)
    size, done, checksum = known.st_size, 0, 0
    piece = header(entry.path, size, EXECUTABLE_MODE if entry.executable else FILE_MODE)
    for data in _chunks(handle, size):
        done, checksum = done + len(data), zlib.crc32(data, checksum)
        # A small file in one piece: each call of the compressor costs as much as ten kilobytes.
        stream.write(piece + data + (bytes(-size % tarfile.BLOCKSIZE) if done == size else b""))
        piece = b""
    if done != size or not stat.S_ISREG(known.st_mode):
        return False
    now = os.fstat(handle)
    if all(getattr(now, field) == getattr(known, field) for field in _CHANGING_FIELDS):
        return True
    # A log that only grows is sent up to its size at the start, which has not changed.
    again = 0
    for data in _chunks(handle, size):
        again = zlib.crc32(data, again)
    return again == checksum


def _chunks(handle: int, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, fewer if it is shorter. An empty file gives one empty chunk."""
    done, data = 0, b"-"
    while data and (done < size or not done):
        data = os.pread(handle, min(size - done, _CHUNK), done)
        done += len(data)
        yield data


def check_digest(digest: str) -> str:
    """Return the hexadecimal digits of a digest. Raise WorkspaceError for an invalid one."""
    if not _DIGEST.fullmatch(digest):
        raise WorkspaceError(f"digest: {digest[:100]!r} must be {DIGEST_PREFIX} and 64 hexadecimal digits")
    return digest.removeprefix(DIGEST_PREFIX)


def digest_of(file: Path | io.BufferedReader) -> str:
    """Return the digest of a file, or of an open file from its position."""
    if not isinstance(file, Path):
        return DIGEST_PREFIX + hashlib.file_digest(file, "sha256").hexdigest()
    with file.open("rb") as opened:
        return DIGEST_PREFIX + hashlib.file_digest(opened, "sha256").hexdigest()


class Member(tarfile.TarInfo):
    """A member for `tarfile.open(tarinfo=...)` with a limited header, because tarfile reads headers into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Raise tarfile.ReadError for a header that no tar of a directory has."""
        member = super().frombuf(buf, encoding, errors)
        if member.type == tarfile.XGLTYPE:  # tarfile keeps each one until the end
            raise tarfile.ReadError("a header for all members")
        if member.type in _IN_MEMORY and member.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size} bytes; the limit is {_MAX_HEADER_BYTES}")
        return member


def unpack(archive: Path, digest: str, into: Path) -> Contents:
    """Verify the archive, unpack it into this empty directory, and return what it contains.

    Nothing is written outside of the directory. Links are created after all files, so that no file is written through
    a link.

    Raises:
        WorkspaceError: The archive has another digest, or the disk is full.
        Refused: The archive is broken, or has an invalid member. The directory then has some of the others.
    """
    if (found := digest_of(archive)) != digest:
        raise Damaged(f"archive: digest is {found} and must be {digest}: it was damaged or replaced")
    unpacking = _Unpacking(max_unpacked_size(archive.stat().st_size))
    try:
        with archive.open("rb") as file:
            reader: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file)
            with tarfile.open(
                fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape", tarinfo=Member
            ) as members:
                members.extractall(into, filter=unpacking.check)  # noqa: S202 (checked)
        unpacking.create_links(into)
    except OSError as error:
        why = error.strerror or error
        raise WorkspaceError(f"workspace: can't write {unpacking.path[:200]!r}: {why}") from None
    # The last three are of tarfile for invalid numbers and endless headers, and of os for names with a NUL.
    except (
        tarfile.TarError,
        zstandard.ZstdError,
        EOFError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:
        why = str(error) or "its headers fill the memory"
        raise Refused(f"archive: broken: {why}; it was not made by kubectl torchrun") from None
    for path, what in unpacking.contents.items():
        if what.startswith("file "):
            unpacking.contents[path] += f" {digest_of(into / path).removeprefix(DIGEST_PREFIX)}"
    return unpacking.contents


class _Unpacking:
    """The members of an archive so far. `check` is a filter of tarfile, which unpacks what it returns."""

    def __init__(self, limit: int) -> None:
        self._limit, self._unpacked = limit, 0
        self.contents: Contents = {}
        self.path = ""
        self._directories = {""}

    def check(self, member: tarfile.TarInfo, _into: str) -> tarfile.TarInfo | None:
        """Return the member without its owner and time, None for a link. Raise Refused for an invalid member."""
        self.path, mode = member.name, UNPACKED_FILE_MODE | (0o111 if member.mode & 0o100 else 0)
        self._unpacked += counted_size(member.size)
        if self._unpacked > self._limit:
            raise Refused(f"archive: unpacks to more than {self._limit} bytes; nothing of it is used")
        if problem := self._problem(member):
            raise _refused(member.name, problem)
        if member.issym():
            self.contents[member.name] = f"link {member.linkname}"
            return None
        self.contents[member.name] = EMPTY_DIRECTORY if member.isdir() else f"file {mode:o}"
        unowned: dict[str, Any] = {"uid": None, "gid": None, "uname": None, "gname": None, "mtime": None}
        return member.replace(mode=DIRECTORY_MODE if member.isdir() else mode, **unowned, deep=False)

    def _problem(self, member: tarfile.TarInfo) -> str:
        """Return why the member is refused, "" for a valid one."""
        if problem := name_problem(member.name):
            return problem
        if member.name in self.contents:
            return "a second member of the same name"
        if member.name.rpartition("/")[0] not in self._directories:
            parents = parents_of(member.name)
            if any(self.contents.get(parent, "").startswith("file ") for parent in parents):
                return "it is inside of a file"
            self._directories.update(parents)
        if member.issym():
            is_inside = link_stays_inside(member.name, member.linkname)
            return "" if is_inside else f"a link out of the workspace, to {member.linkname!r}"
        if member.isdir():
            return ""
        if member.name in self._directories:
            return "a directory has this name"
        if member.issparse():
            return "a file with holes"
        is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        return "" if is_file else _KINDS.get(member.type, "neither a file, a link nor a directory")

    def create_links(self, into: Path) -> None:
        """Create the links, after the last member, each in real directories."""
        links = {path: what for path, what in self.contents.items() if what.startswith("link ")}
        for path, what in links.items():
            if path in self._directories:
                raise _refused(path, "a directory has this name")
            self.path = path
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            os.symlink(what.removeprefix("link "), into / path)


def _refused(path: str, problem: str) -> Refused:
    return Refused(f"archive: refused member {path[:200]!r}: {problem}; nothing of it is used")


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
            why = "changed while it was sent; try again when nothing writes it"
            raise WorkspaceError(f"workspace: {self.root} {why}")
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
    place = os.fspath(root.resolve())
    # Everything that determines the archive, and the files' inodes and times.
    mark = _digest(json.dumps((zstandard.__version__, FORMAT, place, entries)))
    record = cache / f"{_digest(place)}.json"
    if known := _read_record(record, mark):
        return CachedArchive(file=directory / "workspace.tar.zst", root=root, limit=limit, **known)
    archive = pack(root, limit, directory, progress, entries)
    is_old = all(entry.changed < began - TICK_NANOSECONDS for entry in entries)
    # A record in the workspace itself would change it.
    if is_old and not Path(os.path.realpath(cache)).is_relative_to(place):
        known = {"mark": mark, **{field: getattr(archive, field) for field in _FIELDS}}
        with suppress(OSError):
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(record, json.dumps(known))
    return archive


def _digest(data: str) -> str:
    return hashlib.sha256(os.fsencode(data)).hexdigest()


def _read_record(record: Path, mark: str) -> dict[str, Any] | None:
    """Return the recorded fields of the archive, None for no, another or a damaged record."""
    try:
        found: Any = json.loads(record.read_bytes())
        if found.pop("mark") == mark:
            check_digest(found["digest"])
            return {field: type_(found[field]) for field, type_ in _FIELDS.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, WorkspaceError):
        pass
    return None


def replace_file(place: Path, data: str, mode: int = 0o600) -> None:
    """Write a file, completely or not at all. Raise OSError."""
    handle, name = tempfile.mkstemp(prefix=place.name, dir=place.parent)
    try:
        with os.fdopen(handle, "w") as file:
            os.fchmod(handle, mode)
            file.write(data)
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise
