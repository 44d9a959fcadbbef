"""The archives of a sync pod, by digest, and which of them is the job's current one (`Store`).

An upload is written to a partial file, which becomes the archive when its digest is verified. A later upload continues
a partial file. Archives that are not needed are removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from trainyard.workspace.archive import check_digest, digest_of, replace_file
from trainyard.workspace.errors import WorkspaceError

_CHUNK: Final = 2**18
_SUFFIX: Final = ".tar.zst"
_PART: Final = ".part"
_UNTRUSTED: Final = "untrusted-"
_CURRENT: Final = "current"
_LOCK: Final = "lock"
_URL: Final = re.compile(r"s3://[^/]+/.+")


@dataclass(frozen=True)
class Pointer:
    """The archive of a job's workspace: its digest, its size in bytes, and its URL in S3, "" for one in a sync pod.

    A worker unpacks the archive in the annotation of its pod (trainyard/operator/names.py:
    archive_annotation). A sync pod records the archive that it received last.
    """

    digest: str
    size: int
    url: str = ""

    def to_json(self) -> bytes:
        """Return the JSON for an annotation or a sync pod."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Pointer:
        """Parse a pointer. Raise WorkspaceError for an invalid one."""
        try:
            found = json.loads(data)
            pointer = cls(str(found["digest"]), int(found["size"]), str(found["url"]))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(f"pointer to the workspace: {data[:100]!r}: {error}") from None
        check_digest(pointer.digest)
        if pointer.url and not _URL.fullmatch(pointer.url):
            raise WorkspaceError(
                f"pointer to the workspace: url {pointer.url[:100]!r} must be s3://bucket/key"
            )
        return pointer


class Store:
    """A directory for archives of at most `maximum` bytes. Concurrent uploads of an archive give the same file."""

    def __init__(self, root: Path, maximum: int | None = None) -> None:
        self._root, self._maximum = root, maximum

    def archive(self, digest: str) -> Path:
        """Return the path of this archive, which may not exist yet."""
        return self._root / f"{check_digest(digest)}{_SUFFIX}"

    def receive(
        self,
        digest: str,
        size: int,
        read: Callable[[int], bytes],
        on_offset: Callable[[int], None] = lambda _o: None,
        *,
        untrusted: bool = False,
    ) -> None:
        """Receive the missing bytes of an archive, by `read`, which returns "" at the end.

        `on_offset` receives the offset of the first missing byte. `untrusted` archives are received from their first
        byte on, in a separate file.

        Raises:
            WorkspaceError: The stream ended early, and a later call continues; or it has another digest.
        """
        if size < 1:
            raise WorkspaceError(f"size: {size} must be the archive's bytes, at least 1")
        if self._maximum is not None and size > self._maximum:
            raise WorkspaceError(
                f"size: {size} bytes, and the limit of this job's sync pod is {self._maximum}; submit another job"
            )
        place = self.archive(digest)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if place.exists():
                on_offset(size)
                return
            with self._partial_file(digest, untrusted) as (part, file):
                offset = os.fstat(file.fileno()).st_size
                offset = offset if offset < size else 0
                on_offset(offset)
                _copy(file, offset, size, read)
                found = digest_of(part)
                if found != digest:
                    part.unlink()
                    raise WorkspaceError(f"upload: digest is {found} and must be {digest}; send it again")
                os.replace(part, place)
        except OSError as error:
            raise WorkspaceError(f"upload: can't write {place}: {error.strerror}") from None

    @contextmanager
    def _partial_file(self, digest: str, untrusted: bool) -> Iterator[tuple[Path, IO[bytes]]]:
        """Open a partial file of the archive: that of an earlier upload, unless another one continues it.

        A file that does not become the archive is left for a later upload. Untrusted uploads have a separate file.
        """
        part = self._part(digest)
        handle, name = tempfile.mkstemp(_PART, _UNTRUSTED if untrusted else f"{part.stem}-", self._root)
        os.close(handle)
        own = Path(name)
        try:
            if not untrusted:
                with suppress(FileNotFoundError):
                    os.replace(part, own)
            with own.open("r+b") as file:
                yield own, file
        finally:
            with suppress(FileNotFoundError):  # it is the archive now
                os.unlink(own) if untrusted else os.replace(own, part)

    @contextmanager
    def receiving(self, digest: str, keep: str = "") -> Iterator[None]:
        """Hold a lock during the upload of this archive. First remove all other archives except `keep`.

        `keep` is the digest that the job names until the upload is complete, by default the last received one. Nothing
        is removed during another upload.

        Raises:
            WorkspaceError: The directory can't be written.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = (self._root / _LOCK).open("wb")
        except OSError as error:
            raise WorkspaceError(f"upload: can't write in {self._root}: {error.strerror}") from None
        with lock:
            current = self.current()
            keep = keep or (current.digest if current is not None else digest)
            archives = {self.archive(digest).name, self.archive(keep).name}
            kept = {_LOCK, _CURRENT, self._part(digest).name, *archives}
            with suppress(OSError):  # another upload runs; a later one removes the archives
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for each in self._root.iterdir():
                    # A worker that downloads one of them has it open, and is not affected.
                    if each.name not in kept:
                        each.unlink(missing_ok=True)
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def last_write(self) -> float:
        """Return the time of the last byte of an upload, in seconds since the epoch; 0 if there was none.

        Uploads by PUT do not count, because any pod could send them and keep an abandoned job alive.
        """
        with suppress(OSError):  # the upload was completed meanwhile
            parts = (each for each in self._root.glob(f"*{_PART}") if not each.name.startswith(_UNTRUSTED))
            return max((each.stat().st_mtime for each in parts), default=0.0)
        return time.time()

    def current(self) -> Pointer | None:
        """Return the job's current archive, None if there is none."""
        try:
            return Pointer.from_json((self._root / _CURRENT).read_bytes())
        except FileNotFoundError:
            return None

    def point(self, pointer: Pointer) -> None:
        """Make this existing archive the job's current one."""
        if not self.archive(pointer.digest).exists():
            raise WorkspaceError(f"digest: {pointer.digest} does not exist; send the archive first")
        try:
            replace_file(self._root / _CURRENT, pointer.to_json().decode())
        except OSError as error:
            raise WorkspaceError(
                f"pointer to the workspace: can't write in {self._root}: {error.strerror}"
            ) from None

    def _part(self, digest: str) -> Path:
        return self._root / f"{check_digest(digest)}{_PART}"


def _copy(file: IO[bytes], offset: int, size: int, read: Callable[[int], bytes]) -> None:
    file.seek(offset)
    file.truncate()
    while offset < size:
        data = read(min(_CHUNK, size - offset))
        if not data:
            raise WorkspaceError(f"upload: ended after {offset} of {size} bytes; send it again")
        file.write(data)
        offset += len(data)
    file.flush()
    os.fsync(file.fileno())
