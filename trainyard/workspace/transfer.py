"""Transfer archives in a cluster: the HTTP server of a sync pod (`server`), and its clients.

Users send archives by exec, which needs its own permission. The job's spec selects the archive that runs; `/current`
only tells the kubelet that the pod has one. After an earlier sync pod was lost, a worker sends the expected archive
back with PUT. Archives are verified by their digest, so the sender does not matter.
"""

from __future__ import annotations

import http.client
import logging
import os
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from trainyard.workspace.archive import DIGEST_PREFIX, check_digest
from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.store import Pointer, Store

_SECONDS: Final = 30.0
_CHUNK: Final = 2**18


class PodSource:
    """The archive in the pod's annotation, which the controller writes from the job's spec.

    `file` is the annotation in the pod's downward API volume. `pod` is the sync pod for archives that are not in S3,
    None if there is none. The methods raise NotThere if a later try may succeed, and WorkspaceError if none can.
    """

    def __init__(self, file: Path, sync: str = "", bucket: Callable[[], Bucket] = Bucket) -> None:
        """Create the source. `sync` is the address of the sync pod, for archives that are not in S3."""
        self._file, self._bucket = file, cache(bucket)
        self.pod = SyncPod(sync) if sync else None

    def current(self) -> Pointer:
        """Return the archive of the job's present workspace."""
        try:
            return Pointer.from_json(self._file.read_bytes())
        except OSError as error:
            raise WorkspaceError(f"--archive: can't read {self._file}: {error.strerror}") from None

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file, which the caller verifies. Raise OSError if it can't be written."""
        if pointer.url:
            self._bucket().read(pointer.url, into, pointer.size)
        elif self.pod is not None:
            self.pod.archive(pointer, into)
        else:
            raise WorkspaceError(
                f"--sync: is missing, and {pointer.digest} has no address in S3. Name the sync pod."
            )


class SyncPod:
    """A client of the server of a sync pod, at an address such as http://train-sync-0.train:8080."""

    def __init__(self, address: str, seconds: float = _SECONDS) -> None:
        """Create the client. `seconds` is the timeout of each read."""
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise WorkspaceError(f"--sync: {address[:200]!r} must be http://host:port")
        self._address = address.rstrip("/")
        self._seconds = seconds

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file. Raises NotThere, WorkspaceError, OSError."""
        with self.opened(pointer.digest) as answer, into.open("wb") as file:
            left = pointer.size
            while data := self._read(answer):
                left -= len(data)
                if left < 0:
                    raise WorkspaceError(
                        f"sync pod: {self._address} sends more than the {pointer.size} bytes of the archive"
                    )
                file.write(data)

    def opened(self, digest: str) -> http.client.HTTPResponse:
        """Open the archive with this digest for reading. Raise NotThere, WorkspaceError."""
        return self._open(ARCHIVES + check_digest(digest))

    def needs(self, digest: str) -> bool:
        """Return whether the pod has no archive and expects this one. Raises NotThere."""
        with self._open(WANTED) as answer:
            return self._read(answer) == digest.encode()

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
            with self._reaching(), urllib.request.urlopen(request, timeout=self._seconds):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def _open(self, path: str) -> http.client.HTTPResponse:
        url = self._address + path
        try:
            with self._reaching():
                answer: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=self._seconds)  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.client.NOT_FOUND:
                    raise NotThere(f"{url} does not exist yet") from None
                said = error.read(300).decode(errors="replace")
                raise WorkspaceError(f"sync pod: {url}: {error.code} {said}") from None
        return answer

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        with self._reaching():
            return answer.read(_CHUNK)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Convert errors of the connection to NotThere."""
        try:
            yield
        except urllib.error.HTTPError:  # an answer
            raise
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise NotThere(f"sync pod: {self._address} can't be reached: {reason}") from None


LOG: Final = logging.getLogger("workspace")
ARCHIVES: Final = "/archives/"
CURRENT: Final = "/current"
WANTED: Final = "/wanted"
HEALTH: Final = "/healthz"
# The timeout for a worker that is gone.
_SILENCE_SECONDS: Final = 60.0
# The time limit for a worker's upload. A slower upload would block those of the other workers.
RECEIVE_SECONDS: Final = 300.0


def server(store: Store, address: str, port: int, expected: Pointer | None = None) -> ThreadingHTTPServer:
    """Return a server for this store. The caller runs and closes it.

    It accepts the `expected` archive by PUT as long as the store has no archive.

    Raises:
        WorkspaceError: The address is in use.
    """
    receiving = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENCE_SECONDS

        def do_GET(self) -> None:
            try:
                self._answer()
            except WorkspaceError as error:
                self._say(HTTPStatus.BAD_REQUEST, str(error).encode())
            except OSError:  # the worker is gone, or the disk failed
                self.close_connection = True

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            self.close_connection = True  # its body may be left unread
            digest = DIGEST_PREFIX + self.path.removeprefix(ARCHIVES)
            if expected is None or digest != expected.digest or not self._has_no_archive():
                self._say(HTTPStatus.CONFLICT, b"this archive is not needed")
            elif self.headers.get("Content-Length") != str(expected.size):
                self._say(HTTPStatus.BAD_REQUEST, f"the archive has {expected.size} bytes".encode())
            elif not receiving.acquire(blocking=False):
                self._say(HTTPStatus.CONFLICT, b"another worker sends it")
            else:
                late = threading.Timer(RECEIVE_SECONDS, self._close_connection)
                late.start()
                try:
                    store.receive(expected.digest, expected.size, self.rfile, untrusted=True)
                    store.point(expected)
                    LOG.info("%s: received from %s", digest, self.client_address[0])
                    self._say(HTTPStatus.CREATED, b"")
                except WorkspaceError as error:
                    self._say(HTTPStatus.BAD_REQUEST, str(error).encode())
                except OSError:  # the worker is gone
                    LOG.warning("%s: the upload from %s was interrupted", digest, self.client_address[0])
                finally:
                    late.cancel()
                    receiving.release()

        def _close_connection(self) -> None:
            with suppress(OSError):  # closed by the worker
                self.connection.shutdown(socket.SHUT_RDWR)

        def _answer(self) -> None:
            if self.path == HEALTH:
                self._say(HTTPStatus.OK, b"ok")
            elif self.path == CURRENT:
                pointer = store.current()
                if pointer is None:
                    self._say(HTTPStatus.NOT_FOUND, b"no archive was sent yet")
                else:
                    self._say(HTTPStatus.OK, pointer.to_json(), "application/json")
            elif self.path == WANTED:
                wanted = expected.digest if expected is not None and self._has_no_archive() else ""
                self._say(HTTPStatus.OK, wanted.encode())
            elif self.path.startswith(ARCHIVES):
                self._archive(DIGEST_PREFIX + self.path.removeprefix(ARCHIVES))
            else:
                self._say(HTTPStatus.NOT_FOUND, f"the paths are {CURRENT} and {ARCHIVES}<digest>".encode())

        def _has_no_archive(self) -> bool:
            return store.current() is None and not receiving.locked()

        def _archive(self, digest: str) -> None:
            try:
                file = store.archive(digest).open("rb")
            except FileNotFoundError:
                self._say(HTTPStatus.NOT_FOUND, b"this archive was not sent yet")
                return
            with file:
                size = file.seek(0, 2)
                file.seek(0)
                self._head(HTTPStatus.OK, size, "application/zstd")
                if self.command == "GET":
                    shutil.copyfileobj(file, self.wfile, 2**18)
                    LOG.info("%s was sent to %s, %d bytes", digest, self.client_address[0], size)

        def _say(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
            self._head(status, len(body), kind)
            if self.command == "GET":
                self.wfile.write(body)

        def _head(self, status: HTTPStatus, size: int, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes would fill the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # In an IPv6 cluster, pods have IPv6 addresses only.
        address_family = socket.AF_INET6 if _has_ipv6(address) else socket.AF_INET
        request_queue_size = 128  # all workers of a job connect at once

        def server_bind(self) -> None:
            """Bind. The IPv6 wildcard address also accepts IPv4."""
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    try:
        return Server((address, port), Handler)
    except OSError as error:
        raise WorkspaceError(
            f"port: can't serve on {address or '*'}:{port}: {error.strerror}; use a free one"
        ) from None
    except OverflowError:
        raise WorkspaceError(f"port: {port} must be 0 to 65535") from None


def _has_ipv6(address: str) -> bool:
    return ":" in address or (not address and socket.has_dualstack_ipv6())


# The timeout of another job's sync pod. The sender of the archive waits meanwhile.
_NEARBY_SECONDS: Final = 3.0
# Then the user's upload is probably faster. The plugin's timeout is a minute (trainyard/k8s/exec.py).
_MAX_COPY_SECONDS: Final = 30.0


def copy_from_nearby(store: Store, digest: str, size: int, addresses: Sequence[str]) -> bool:
    """Copy the archive from the sync pod of another job, unless it exists. Return whether it exists now.

    The pods are asked one after another, within half a minute, and their archives verified by the digest. Errors are
    logged: the user can still send the archive.
    """
    if store.archive(digest).exists():
        return True
    until = time.monotonic() + _MAX_COPY_SECONDS
    for address in addresses:
        try:
            with SyncPod(address, _NEARBY_SECONDS).opened(digest) as response:
                store.receive(digest, size, _TimedReader(response, until), untrusted=True)
        except (NotThere, WorkspaceError, http.client.HTTPException) as error:
            LOG.info("%s is not copied from %s: %s", digest, address, error)
        else:
            LOG.info("%s was copied from %s, %d bytes", digest, address, size)
            return True
    return False


class _TimedReader:
    """A response that is read until this time (time.monotonic)."""

    def __init__(self, response: http.client.HTTPResponse, until: float) -> None:
        self._response, self._until = response, until

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes. Raise NotThere when the time is over."""
        if time.monotonic() > self._until:
            raise NotThere("it is too slow")
        try:
            return self._response.read1(size)
        except OSError as error:
            raise NotThere(f"the connection broke: {error}") from None
