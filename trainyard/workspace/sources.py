"""Where a worker gets its workspace from: the job's sync pod, or S3."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Final, Protocol
from urllib.parse import urlsplit

from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.serve import ARCHIVES, WANTED
from trainyard.workspace.store import Pointer
from trainyard.workspace.unpack import check_digest

_SECONDS: Final = 30.0
_CHUNK: Final = 2**18
_MOST_ANSWER_BYTES: Final = 256


class Source(Protocol):
    """The source of a worker's archive.

    Both methods raise NotThere if a later try may succeed, and WorkspaceError if none can. `pod` is the sync pod for
    archives that are not in S3, None if there is none.
    """

    pod: SyncPod | None

    def current(self) -> Pointer:
        """Return the archive of the job's present workspace."""

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file. The caller verifies it.

        Raises:
            OSError: The file can't be written.
        """


class PodSource:
    """The archive in the pod's annotation, which the controller writes from the job's spec.

    `file` is the annotation in the pod's downward API volume. The job's spec selects the archive. Archives from the
    bucket or the sync pod are verified by their digest.
    """

    def __init__(self, file: Path, sync: str = "", bucket: Callable[[], Bucket] = Bucket) -> None:
        """Create the source. `sync` is the address of the sync pod, for archives that are not in S3."""
        self._file, self._bucket = file, cache(bucket)
        self.pod = SyncPod(sync) if sync else None

    def current(self) -> Pointer:
        try:
            return Pointer.from_json(self._file.read_bytes())
        except OSError as error:
            raise WorkspaceError(f"--archive: can't read {self._file}: {error.strerror}") from None

    def archive(self, pointer: Pointer, into: Path) -> None:
        if pointer.url:
            self._bucket().read(pointer.url, into, pointer.size)
        elif self.pod is not None:
            self.pod.archive(pointer, into)
        else:
            raise WorkspaceError(
                f"--sync: is missing, and {pointer.digest} has no address in S3. Name the sync pod."
            )


class SyncPod:
    """The server of trainyard/workspace/serve.py at this address, such as http://train-sync-0.train:8080."""

    def __init__(self, address: str, seconds: float = _SECONDS) -> None:
        """`seconds` is for how long it may say nothing."""
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise WorkspaceError(f"--sync: {address[:200]!r} should be http://host:port")
        self._address = address.rstrip("/")
        self._seconds = seconds

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file. Raises NotThere, WorkspaceError, OSError."""
        with self.opened(pointer.digest) as answer, into.open("wb") as file:
            left = pointer.size
            while data := self._piece(answer):
                left -= len(data)
                if left < 0:
                    raise WorkspaceError(
                        f"sync pod: {self._address} sends more than the {pointer.size} bytes of the archive"
                    )
                file.write(data)

    def opened(self, digest: str) -> http.client.HTTPResponse:
        """The archive of this digest, to be read to its end. Raises NotThere, WorkspaceError."""
        try:
            return self._open(ARCHIVES + check_digest(digest))
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _piece(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def needs(self, digest: str) -> bool:
        """Return whether the pod has no archive and expects this one. Raises NotThere."""
        try:
            with self._open(WANTED) as answer:
                return bool(answer.read(_MOST_ANSWER_BYTES) == digest.encode())
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def upload(self, digest: str, archive: IO[bytes]) -> bool:
        """Send the archive to a pod that needs it. Return whether the pod accepted it. Raises NotThere."""
        size = os.fstat(archive.fileno()).st_size
        request = urllib.request.Request(  # noqa: S310 (http, as checked)
            self._address + ARCHIVES + check_digest(digest),
            data=archive,
            method="PUT",
            headers={"Content-Length": str(size), "Content-Type": "application/zstd"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _open(self, path: str) -> http.client.HTTPResponse:
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(  # noqa: S310 (http, as checked)
                self._address + path, timeout=self._seconds
            )
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.client.NOT_FOUND:
                    raise _NotFound(f"{self._address}{path} is not there yet") from None
                said = error.read(300).decode(errors="replace")
                raise WorkspaceError(f"sync pod: {self._address}{path}: {error.code} {said}") from None
        return answer

    def _unreachable(self, error: Exception) -> NotThere:
        reason = getattr(error, "reason", None) or error
        return NotThere(f"sync pod: {self._address} can't be reached: {reason}")


class _NotFound(NotThere):
    """It answers, and has it not."""
