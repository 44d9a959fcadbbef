"""The interface of a store, its errors, and a file that is hashed while it is written."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol

Why = Literal["missing", "refused", "full", "failed"]
NO_NOTES: Mapping[str, str] = {}
BYTES = "application/octet-stream"
PIECE_BYTES = 2**20


class StoreError(Exception):
    """A failure of a store, with a one-line message. `why` is missing, refused, full or failed (all others)."""

    def __init__(self, message: str, why: Why) -> None:
        super().__init__(message, why)
        self.why = why

    def __str__(self) -> str:
        return str(self.args[0])


class Store(Protocol):
    """Files by path; paths are relative, with slashes. Every method raises StoreError on a failure."""

    def uri(self, path: str) -> str:
        """Return the full URI of a path, for messages."""

    def local(self, path: str) -> Path | None:
        """Return the local file of a path, None if the store is remote."""

    def list(self, prefix: str = "") -> dict[str, int]:
        """Return all paths with this prefix, and their sizes in bytes. A failed listing is never empty."""

    def read(self, path: str) -> bytes:
        """Return the whole content."""

    def fetch(self, path: str, file: Path) -> None:
        """Copy the content to a new local file."""

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        """Copy a local file of any size to the store, and replace what is there.

        `kind` is a media type, `notes` are ASCII strings of at most 2 KB together. S3 stores both as object metadata.
        """

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        """Write a small file, and replace what is there."""

    def put_if_absent(self, path: str, body: bytes) -> bool:
        """Write a file if it does not exist, atomically: only one of several concurrent calls returns True."""

    def probe(self, path: str) -> None:
        """Check that the path can be written, and leave nothing."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. A missing file is not an error."""


def from_os_error(verb: str, place: str, error: OSError) -> StoreError:
    """Return an OSError as a StoreError."""
    why: Why = "failed"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        why = "missing"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = "refused"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why = "full"
    return StoreError(f"cannot {verb} {place}: {error.strerror or error}", why)


class Hashed(io.RawIOBase):
    """A file for `torch.save` that writes to `file`, and counts and hashes (SHA-256) what is written.

    `hashlib` releases the interpreter's lock except for tiny pieces. `error` is the first error of the file, because
    torch.save raises an error of an unexpected position instead, which does not name the cause.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.hash = sha256()
        self.count = 0
        self.error: OSError | None = None

    def write(self, piece: Any) -> int:
        try:
            self._file.write(piece)
        except OSError as error:
            self.error = self.error or error
            raise
        self.hash.update(piece)
        size = memoryview(piece).nbytes
        self.count += size
        return size

    def tell(self) -> int:
        return self.count

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        return int(self._file.fileno())

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
