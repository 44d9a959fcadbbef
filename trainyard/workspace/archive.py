"""A directory as one archive that depends on nothing but names, contents, links and who may execute: a tar.zst.

A directory has a member of its own only where nothing is in it.

The same workspace gives the same bytes on every machine with the same version of zstandard, and so the same digest:
what is there under this digest already need not be sent again.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Self

import zstandard

from trainyard.workspace.errors import Refused, WorkspaceError
from trainyard.workspace.selection import (
    DEFAULT_LIMIT_BYTES,
    Entry,
    Unfit,
    counted,
    link_stays_inside,
    name_problem,
    naming_ignore_file,
    select,
    size_in_words,
    unpacked_bound,
    unreadable,
)

# Of code, a higher level saves a twentieth and takes half as long again.
_LEVEL: Final = 2
# Beside the thread that reads. One or more give the same bytes, none gives others.
_THREADS: Final = 2
_CHUNK: Final = 2**20
_TRIES: Final = 3
# All but the files that decides the bytes of an archive; what changes here changes every digest.
FORMAT: Final = (3, _LEVEL, _THREADS)
FILE_MODE: Final = 0o644
EXECUTABLE_MODE: Final = 0o755
DIGEST_PREFIX: Final = "sha256:"
# What fits into the head of a member by itself.
_SHORT_NAME: Final = 100
_SMALL_FILE: Final = 8**11


@dataclass(frozen=True)
class Archive:
    """A packed workspace: `size` is that of the archive, `content` that of its files, both in bytes."""

    file: Path
    digest: str
    size: int
    content: int
    files: int

    def open(self) -> BinaryIO:
        """To read what is sent."""
        return self.file.open("rb")


def pack(
    root: Path,
    limit: int = DEFAULT_LIMIT_BYTES,
    directory: Path | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    entries: Sequence[Entry] | None = None,
) -> Archive:
    """The workspace of this directory, in a new file in `directory`, else where such files go; the caller removes it.

    `progress` is told how many bytes of all are packed; `entries` are the directory's, if they are known.
    Raises WorkspaceError, as `select` does, and for a file that changes while it is read; then nothing is left.
    """
    entries = select(root, limit) if entries is None else entries
    total = sum(entry.size for entry in entries)
    try:
        handle, name = tempfile.mkstemp(".tar.zst", "workspace-", directory)
    except OSError as error:
        raise WorkspaceError(f"workspace: no room for the archive: {error}") from None
    try:
        with os.fdopen(handle, "wb") as file, naming_ignore_file(root):
            target = _Hashing(file)
            compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=_THREADS, write_checksum=True)
            with compressor.stream_writer(target, closefd=False) as stream:  # type: ignore[arg-type]
                done, base = 0, str(root.resolve())
                for entry in entries:
                    _add(base, entry, stream)
                    done += entry.size
                    progress(done, total)
                stream.write(bytes(2 * tarfile.BLOCKSIZE))
            most = unpacked_bound(target.size)
            if sum(counted(entry.size) for entry in entries) > most:
                raise WorkspaceError(
                    f"workspace: {size_in_words(total)} pack to {size_in_words(target.size)}, and workers make at most "
                    f"{size_in_words(most)} of that; let the job itself make files of zeros"
                )
        return Archive(Path(name), DIGEST_PREFIX + target.hash.hexdigest(), target.size, total, len(entries))
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise WorkspaceError(f"workspace: can't write the archive {name}: {error.strerror}") from None
        raise


class _Hashing:
    """Writes through to a file, and knows the digest and the size of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing is held back here."""


def header(
    path: str, size: int = 0, mode: int = FILE_MODE, target: str = "", *, is_directory: bool = False
) -> bytes:
    """The head of one member; long names and those that are not UTF-8 stand in a head of their own before it (pax)."""
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
    """What tarfile makes of nearly every member, in a tenth of its time."""
    name = path.encode().ljust(_SHORT_NAME, b"\0")
    block = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0        0" % (name, mode, 0, 0, size, 0)
    block = block.ljust(257, b"\0") + b"ustar\x0000"
    return block[:148] + b"%06o\0" % sum(block) + block[155:].ljust(357, b"\0")


def _add(root: str, entry: Entry, stream: Any) -> None:
    if entry.target:
        stream.write(header(entry.path, target=entry.target))
        return
    if entry.is_directory:
        stream.write(header(entry.path, is_directory=True))
        return
    try:
        # A file that has become a link since is not followed, nor is a pipe waited for.
        handle = os.open(f"{root}/{entry.path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(entry.path, error) from None
    try:
        _copy(handle, entry, stream)
    finally:
        os.close(handle)


def _copy(handle: int, entry: Entry, stream: Any) -> None:
    known, data = _begun(handle, entry.path)
    # One piece of a small file: each call of the compressor costs as much as ten kilobytes.
    piece = header(entry.path, known.st_size, EXECUTABLE_MODE if entry.executable else FILE_MODE) + data
    done, checksum = len(data), zlib.crc32(data)
    while done < known.st_size:
        stream.write(piece)
        piece = _read(handle, entry.path, done, known.st_size)
        done, checksum = done + len(piece), zlib.crc32(piece, checksum)
    # A log that only grows is sent as far as it was: what was read of it is still there.
    is_same = known.st_size <= _CHUNK or _is_unchanged(handle, known)
    if not is_same and _checksum(handle, entry.path, known.st_size) != checksum:
        raise _changed(entry.path)
    stream.write(piece + bytes(-known.st_size % tarfile.BLOCKSIZE))


def _begun(handle: int, path: str) -> tuple[os.stat_result, bytes]:
    """The file as it is, and its first piece; a small one whole, read again if it was written meanwhile."""
    for _ in range(_TRIES):
        known = os.fstat(handle)
        if not stat.S_ISREG(known.st_mode):
            break
        data = _read(handle, path, 0, known.st_size)
        if known.st_size > _CHUNK or (len(data) == known.st_size and _is_unchanged(handle, known)):
            return known, data
    raise _changed(path)


def _checksum(handle: int, path: str, size: int) -> int:
    done, checksum = 0, 0
    while done < size:
        data = _read(handle, path, done, size)
        done, checksum = done + len(data), zlib.crc32(data, checksum)
    return checksum


def _read(handle: int, path: str, start: int, end: int) -> bytes:
    """At least a byte, unless nothing is wanted."""
    try:
        data = os.pread(handle, min(end - start, _CHUNK), start)
    except OSError as error:
        raise unreadable(path, error) from None
    if start < end and not data:
        raise _changed(path)
    return data


def _is_unchanged(handle: int, known: os.stat_result) -> bool:
    now = os.fstat(handle)
    return (now.st_size, now.st_mtime_ns, now.st_ctime_ns) == (
        known.st_size,
        known.st_mtime_ns,
        known.st_ctime_ns,
    )


def _changed(path: str) -> Unfit:
    return Unfit(
        f"workspace: {path} changed while it was read; try again when nothing writes it, or name it in"
    )


_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# More memory than this no archive of ours needs to be read (zstd's own limit of its command line).
_WINDOW: Final = 2**27
# The group of the pod (fsGroup) may write: the user of the workers need not be the one who unpacks.
UNPACKED_FILE_MODE: Final = 0o664
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
    mode = UNPACKED_FILE_MODE | (0o111 if member.mode & 0o100 else 0)
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


# A path or a link's target of Linux has at most 4096 bytes; extended attributes come beside them.
_MOST_BYTES: Final = 2**20
_IN_MEMORY: Final = frozenset(
    {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)


class Member(tarfile.TarInfo):
    """For `tarfile.open(tarinfo=...)`."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Raises tarfile.ReadError for a head that no tar of a directory makes."""
        member = super().frombuf(buf, encoding, errors)
        if member.type == tarfile.XGLTYPE:  # each adds to what is remembered until the end
            raise tarfile.ReadError("a head that is for all members")
        if member.type in _IN_MEMORY and member.size > _MOST_BYTES:
            raise tarfile.ReadError(f"a head of {member.size} bytes, and at most {_MOST_BYTES} are read")
        return member
