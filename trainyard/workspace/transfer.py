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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from trainyard.workspace.archive import DIGEST_PREFIX, check_digest
from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.store import Pointer, Store

LOG: Final = logging.getLogger("workspace")
ARCHIVES: Final = "/archives/"
CURRENT: Final = "/current"
WANTED: Final = "/wanted"
_CHUNK: Final = 2**18
_SECONDS: Final = 30.0
# The timeout for a worker that is gone.
_SILENCE_SECONDS: Final = 60.0
# The time limit for a worker's upload. A slower upload would block those of the other workers.
RECEIVE_SECONDS: Final = 300.0
# The timeout of another job's sync pod. The sender of the archive waits meanwhile.
_NEARBY_SECONDS: Final = 3.0
# Then the user's upload is probably faster. The plugin's timeout is a minute (trainyard/k8s/exec.py).
_MAX_COPY_SECONDS: Final = 30.0


class PodSource:
    """The archive in the pod's annotation, which the controller writes from the job's spec.

    `file` is the annotation in the pod's downward API volume. `pod` is the sync pod for archives that are not in S3,
    None if there is none. The methods raise NotThere if a later try may succeed, and WorkspaceError if none can.
    """

    def __init__(self, file: Path, sync: str = "") -> None:
        """Create the source. `sync` is the address of the sync pod, for archives that are not in S3."""
        self._file = file
        self.pod = SyncPod(sync) if sync else None

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket()

    def current(self) -> Pointer:
        """Return the archive of the job's present workspace."""
        try:
            return Pointer.from_json(self._file.read_bytes())
        except OSError as error:
            raise WorkspaceError(f"--archive: can't read {self._file}: {error.strerror}") from None

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file, which the caller verifies. Raise OSError if it can't be written."""
        if pointer.url:
            self._bucket.read(pointer.url, into, pointer.size)
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
        self._address, self._seconds = address.rstrip("/"), seconds

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file. Raises NotThere, WorkspaceError, OSError."""
        left = pointer.size
        with into.open("wb") as file:
            for data in self.chunks(pointer.digest):
                left -= len(data)
                if left < 0:
                    raise WorkspaceError(
                        f"sync pod: {self._address} sends more than the {pointer.size} bytes of the archive"
                    )
                file.write(data)

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield the archive with this digest in chunks. Raises NotThere, WorkspaceError."""
        return self._request(ARCHIVES + check_digest(digest))

    def needs(self, digest: str) -> bool:
        """Return whether the pod has no archive and expects this one. Raises NotThere."""
        return b"".join(self._request(WANTED)) == digest.encode()

    def upload(self, digest: str, archive: IO[bytes]) -> bool:
        """Send the archive to a pod that needs it. Return whether the pod accepted it. Raises NotThere."""
        try:
            return not any(self._request(ARCHIVES + check_digest(digest), archive))
        except WorkspaceError:  # it does not need it any more
            return False

    def _request(self, path: str, body: IO[bytes] | None = None) -> Iterator[bytes]:
        """Yield the chunks of an answer. A request with a body, an open file, is a PUT."""
        request = urllib.request.Request(self._address + path)  # noqa: S310 (http, as checked)
        if body is not None:
            request.method, request.data = "PUT", body
            request.add_header("Content-Length", str(os.fstat(body.fileno()).st_size))
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as answer:  # noqa: S310
                while data := answer.read1(_CHUNK):
                    yield data
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_FOUND:
                    raise NotThere(f"{request.full_url} does not exist yet") from None
                reason = error.read(300).decode(errors="replace")
                raise WorkspaceError(f"sync pod: {request.full_url}: {error.code} {reason}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise NotThere(f"sync pod: {self._address} can't be reached: {why}") from None


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
            chunks = SyncPod(address, _NEARBY_SECONDS).chunks(digest)

            def read(_size: int, chunks: Iterator[bytes] = chunks) -> bytes:
                if time.monotonic() > until:
                    raise NotThere("it is too slow")
                return next(chunks, b"")

            store.receive(digest, size, read, untrusted=True)
        except (NotThere, WorkspaceError) as error:
            LOG.info("%s is not copied from %s: %s", digest, address, error)
        else:
            LOG.info("%s was copied from %s, %d bytes", digest, address, size)
            return True
    return False


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
                if self.path == CURRENT and store.current() is None:
                    self._answer(HTTPStatus.NOT_FOUND, "no archive was sent yet")
                elif self.path == CURRENT:
                    self._answer(HTTPStatus.OK, "an archive was sent")
                elif self.path == WANTED:
                    self._answer(HTTPStatus.OK, expected.digest if expected and self._needs_archive() else "")
                elif self.path.startswith(ARCHIVES):
                    self._send_archive(self._digest())
                else:
                    self._answer(HTTPStatus.NOT_FOUND, f"the paths are {CURRENT} and {ARCHIVES}<digest>")
            except WorkspaceError as error:
                self._answer(HTTPStatus.BAD_REQUEST, str(error))
            except OSError:  # the worker is gone, or the disk failed
                self.close_connection = True

        def do_PUT(self) -> None:
            self.close_connection = True  # its body may be left unread
            if expected is None or self._digest() != expected.digest or not self._needs_archive():
                self._answer(HTTPStatus.CONFLICT, "this archive is not needed")
            elif self.headers.get("Content-Length") != str(expected.size):
                self._answer(HTTPStatus.BAD_REQUEST, f"the archive has {expected.size} bytes")
            elif not receiving.acquire(blocking=False):
                self._answer(HTTPStatus.CONFLICT, "another worker sends it")
            else:
                late = threading.Timer(RECEIVE_SECONDS, self._close_connection)
                late.start()
                try:
                    store.receive(expected.digest, expected.size, self.rfile.read, untrusted=True)
                    store.point(expected)
                    LOG.info("%s: received from %s", expected.digest, self.client_address[0])
                    self._answer(HTTPStatus.CREATED, "")
                except WorkspaceError as error:
                    self._answer(HTTPStatus.BAD_REQUEST, str(error))
                except OSError:  # the worker is gone
                    LOG.warning(
                        "%s: the upload from %s was interrupted", expected.digest, self.client_address[0]
                    )
                finally:
                    late.cancel()
                    receiving.release()

        def _close_connection(self) -> None:
            with suppress(OSError):  # closed by the worker
                self.connection.shutdown(socket.SHUT_RDWR)

        def _digest(self) -> str:
            return DIGEST_PREFIX + self.path.removeprefix(ARCHIVES)

        def _needs_archive(self) -> bool:
            return store.current() is None and not receiving.locked()

        def _send_archive(self, digest: str) -> None:
            try:
                file = store.archive(digest).open("rb")
            except FileNotFoundError:
                self._answer(HTTPStatus.NOT_FOUND, "this archive was not sent yet")
                return
            with file:
                size = os.fstat(file.fileno()).st_size
                self._start_answer(HTTPStatus.OK, size)
                shutil.copyfileobj(file, self.wfile, _CHUNK)
                LOG.info("%s was sent to %s, %d bytes", digest, self.client_address[0], size)

        def _answer(self, status: HTTPStatus, text: str) -> None:
            self._start_answer(status, len(text.encode()))
            self.wfile.write(text.encode())

        def _start_answer(self, status: HTTPStatus, size: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes would fill the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # In an IPv6 cluster, pods have IPv6 addresses only.
        has_ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
        address_family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
        request_queue_size = 128  # all workers of a job connect at once

        def server_bind(self) -> None:
            """Bind. The IPv6 wildcard address also accepts IPv4."""
            if self.has_ipv6:
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
