"""Serve the archives of a sync pod over HTTP, by digest.

Users send archives by exec, which needs its own permission. The job's spec selects the archive that runs; `/current`
only tells the kubelet that the pod has one. After an earlier sync pod was lost, a worker sends the expected archive
back with PUT. The pod checks its digest, so the sender does not matter.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.pack import DIGEST_PREFIX
from trainyard.workspace.store import Pointer, Store

LOG: Final = logging.getLogger("workspace")
ARCHIVES: Final = "/archives/"
CURRENT: Final = "/current"
WANTED: Final = "/wanted"
HEALTH: Final = "/healthz"
# A worker that is gone keeps no thread for longer than this.
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
            except OSError:  # the worker is gone, or the disk is
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
                late = threading.Timer(RECEIVE_SECONDS, self._hang_up)
                late.start()
                try:
                    store.receive(expected.digest, expected.size, self.rfile, apart=True)
                    store.point(expected)
                    LOG.info("%s: received from %s", digest, self.client_address[0])
                    self._say(HTTPStatus.CREATED, b"")
                except WorkspaceError as error:
                    self._say(HTTPStatus.BAD_REQUEST, str(error).encode())
                except OSError:  # the worker is gone
                    LOG.warning("%s: the upload from %s broke off", digest, self.client_address[0])
                finally:
                    late.cancel()
                    receiving.release()

        def _hang_up(self) -> None:
            with suppress(OSError):  # the worker did
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
                self._say(HTTPStatus.NOT_FOUND, f"{CURRENT} and {ARCHIVES}<digest> are here".encode())

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
            """A probe each few seconds would fill the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # In an IPv6 cluster, pods have IPv6 addresses only.
        address_family = socket.AF_INET6 if _has_ipv6(address) else socket.AF_INET
        request_queue_size = 128  # all workers of a job ask at once

        def server_bind(self) -> None:
            """Bind. The IPv6 wildcard address also accepts IPv4."""
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    try:
        return Server((address, port), Handler)
    except OSError as error:
        raise WorkspaceError(
            f"port: can't serve on {address or '*'}:{port}: {error.strerror}; give a free one"
        ) from None
    except OverflowError:
        raise WorkspaceError(f"port: {port} should be 0 to 65535") from None


def _has_ipv6(address: str) -> bool:
    return ":" in address or (not address and socket.has_dualstack_ipv6())
