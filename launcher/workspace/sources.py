"""Where a worker gets its workspace from: the job's sync pod, or S3."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Final, Protocol
from urllib.parse import urlsplit

from launcher.workspace.bucket import Bucket, parse_url
from launcher.workspace.errors import NotThere, WorkspaceError
from launcher.workspace.serve import ARCHIVES, CURRENT, WANTED
from launcher.workspace.store import Pointer
from launcher.workspace.unpack import check_digest

_SECONDS: Final = 30.0
_CHUNK: Final = 2**18
_MOST_POINTER_BYTES: Final = 65536


class Source(Protocol):
    """Both methods raise NotThere where a later try may go better, and WorkspaceError where none does."""

    def archive(self, digest: str, into: Path) -> None:
        """Gets the archive of this digest into this file; it is the caller who verifies it.

        Raises OSError where the file can't be written.
        """

    def current(self) -> Pointer | None:
        """Which archive the job's workspace is now; None where nobody has said so yet."""


class SyncPod:
    """The server of launcher/workspace/serve.py at this address, such as http://train-sync-0.train:8080."""

    def __init__(self, address: str, seconds: float = _SECONDS) -> None:
        """`seconds` is for how long it may say nothing."""
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise WorkspaceError(f"--sync: {address[:200]!r} should be http://host:port")
        self._address = address.rstrip("/")
        self._seconds = seconds

    def archive(self, digest: str, into: Path) -> None:
        with self.opened(digest) as answer, into.open("wb") as file:
            while data := self._piece(answer):
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

    def current(self) -> Pointer | None:
        try:
            with self._open(CURRENT) as answer:
                return Pointer.from_json(answer.read(_MOST_POINTER_BYTES))
        except _NotFound:
            return None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def wants(self, digest: str) -> bool:
        """Whether the pod has no archive, and expects this one. Raises NotThere."""
        try:
            with self._open(WANTED) as answer:
                return bool(answer.read(_MOST_POINTER_BYTES) == digest.encode())
        except _NotFound:  # of an earlier release
            return False
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def give(self, digest: str, archive: IO[bytes]) -> bool:
        """Sends this archive to a pod that wants it; whether it took it. Raises NotThere."""
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


class S3:
    """A bucket: `archive_url` has the archive that is asked for first, `pointer_url` says which one it is now."""

    def __init__(self, archive_url: str = "", pointer_url: str = "", bucket: Bucket | None = None) -> None:
        for url in filter(None, (archive_url, pointer_url)):
            if not parse_url(url)[1]:
                raise WorkspaceError(f"--url: {url[:200]!r} should be s3://bucket/key")
        self._url, self._pointer_url = archive_url, pointer_url
        self._bucket = bucket or Bucket()
        self._said: Pointer | None = None

    def archive(self, digest: str, into: Path) -> None:
        # Who may not read the pointer still gets the archive whose address is known.
        said = self._said or (None if self._url else self.current())
        url = said.url if said and said.digest == digest else self._url
        if not url:
            raise NotThere(f"{self._pointer_url} names no object with {digest}")
        self._bucket.read(url, into)

    def current(self) -> Pointer | None:
        self._said = self._bucket.pointer(self._pointer_url) if self._pointer_url else None
        return self._said
