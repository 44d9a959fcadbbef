"""A directory as one archive that depends on nothing but names, contents, links and who may execute: a tar.zst.

A directory has a member of its own only where nothing is in it.

The same workspace gives the same bytes on every machine with the same version of zstandard, and so the same digest:
what is there under this digest already need not be sent again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

import zstandard

from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.members import counted, unpacked_bound
from trainyard.workspace.selection import (
    DEFAULT_LIMIT_BYTES,
    Entry,
    Unfit,
    naming_ignore_file,
    select,
    size_in_words,
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
