"""A file that is hashed while it is written, so that nobody has to read it again for that."""

from __future__ import annotations

import io
from hashlib import sha256
from typing import Any


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
