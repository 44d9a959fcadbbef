"""What every store can do, and how it says that it could not."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol

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
