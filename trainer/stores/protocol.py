"""What every store can do, its errors, and a file that is hashed while it is written."""

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
    """What could not be done, where and why, in one line; `why` is missing, refused, full or failed (all others)."""

    def __init__(self, message: str, why: Why) -> None:
        super().__init__(message, why)
        self.why = why

    def __str__(self) -> str:
        return str(self.args[0])


class Store(Protocol):
    """Named byte strings; names are relative, with slashes. Every method raises StoreError when it fails."""

    def uri(self, path: str) -> str:
        """The full name, for people."""

    def local(self, path: str) -> Path | None:
        """Where this is a file of this machine, or None."""

    def list(self, prefix: str = "") -> dict[str, int]:
        """All names that begin so, with their sizes in bytes. A listing that fails is never an empty one."""

    def read(self, path: str) -> bytes:
        """The whole content."""

    def fetch(self, path: str, file: Path) -> None:
        """Copy into a new file of this machine."""

    def send(self, file: Path, path: str, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        """Copy a file of this machine into the store, of any size, in the place of what is there.

        `kind` is a media type, `notes` are short ASCII texts, together at most 2 KB; S3 keeps both beside the object.
        """

    def put(self, path: str, body: bytes, kind: str = BYTES, notes: Mapping[str, str] = NO_NOTES) -> None:
        """The same with bytes; for small ones."""

    def put_if_absent(self, path: str, body: bytes) -> bool:
        """Write unless the name is taken, as one step: of several at once one gets True."""

    def probe(self, path: str) -> None:
        """Find out whether this name could be written, and leave nothing."""

    def delete(self, paths: Iterable[str]) -> None:
        """Remove these; what is not there is no failure."""


def of_system(verb: str, place: str, error: OSError) -> StoreError:
    """What the operating system said, as a StoreError."""
    why: Why = "failed"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        why = "missing"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = "refused"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why = "full"
    return StoreError(f"cannot {verb} {place}: {error.strerror or error}", why)


class Hashed(io.RawIOBase):
    """What `torch.save` writes into: it goes to `file`, and is counted and hashed (SHA-256) on the way.

    `hashlib` lets go of the interpreter's lock for all but tiny pieces. `error` is the file's own first one: torch.save
    raises another instead, of a position that it did not expect, which does not name the cause.
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
