"""The supervisor's HTTP API on a unix socket, and a client for it.

`serve` is the entry point of the server, `request` that of the client.

POST   /clusters          local.cluster.control_plane.Request, of the emulator, which has checked it; answers when
                          the API server is ready
DELETE /clusters/<name>   stops the control plane and removes its files
GET    /status            processes, clusters, memory and CPU time of everything in the namespace
POST   /shutdown          ends the local cloud; answers at once
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, Protocol
from urllib.parse import unquote

JsonObject = dict[str, Any]
# A new control plane has one minute to become ready.
REQUEST_SECONDS = 90.0


class ControlError(Exception):
    """A refused request: an HTTP status and a message of one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Controlled(Protocol):
    """The methods that the API serves."""

    def create_cluster(self, body: JsonObject) -> JsonObject:
        """Start a control plane."""

    def delete_cluster(self, name: str) -> None:
        """Stop a control plane."""

    def status(self) -> JsonObject:
        """Return what is running."""

    def shut_down(self) -> None:
        """Begin to end everything, and return."""


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 32


def serve(path: Path, controlled: Controlled) -> None:
    """Serve the API in its own threads until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because the methods log their actions."""

        def _answer(self) -> None:
            try:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = 200, _dispatch(controlled, self.command, self.path, content)
            except ControlError as error:
                status, body = error.status, {"error": str(error)}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _answer

    path.unlink(missing_ok=True)
    server = _Server(os.fspath(path), Handler)
    os.chmod(path, 0o600)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()


def _dispatch(controlled: Controlled, method: str, path: str, content: bytes) -> JsonObject:
    route = (method, path.partition("?")[0].rstrip("/"))
    if route == ("GET", "/status"):
        return controlled.status()
    if route == ("POST", "/shutdown"):
        controlled.shut_down()
        return {}
    if route == ("POST", "/clusters"):
        return controlled.create_cluster(json.loads(content))
    if method == "DELETE" and route[1].startswith("/clusters/"):
        controlled.delete_cluster(unquote(route[1].removeprefix("/clusters/")))
        return {}
    raise ControlError(404, f"there is no {method} {path}")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


def request(
    socket_path: Path,
    method: str,
    path: str,
    body: JsonObject | None = None,
    timeout: float = REQUEST_SECONDS,
) -> JsonObject:
    """Send one request to the supervisor.

    Raises:
        ControlError: The supervisor refused it.
        OSError, http.client.HTTPException: Nothing answers.
    """
    connection = _Connection(socket_path, timeout)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        answer: JsonObject = json.loads(response.read())
    finally:
        connection.close()
    if response.status >= 400:
        raise ControlError(response.status, str(answer.get("error", response.reason)))
    return answer
