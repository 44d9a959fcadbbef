"""A proxy between one client and an API server: it passes everything on, counts, and misbehaves as planned.

Requests keep their own `Authorization`, so that the API server's own rights hold. Each has a connection of its own, and
what comes back is relayed byte by byte as it comes: watches stream.

Counted as writes are POST, PUT, PATCH and DELETE, of whatever: Events and renewals of Leases are among them. They are
numbered from 1 in the order in which they arrive, each retry under a new number.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, urlsplit

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Longer than the API server itself works on one request.
UPSTREAM_SECONDS = 60.0
_PIECE = 65536
# Between two bytes of an answer without end: no client that waits for the next one gives it up.
_TRICKLE_SECONDS = 1.0
_ENDLESS = 1_000_000

Moment = Literal["before", "after"]


@dataclass(kw_only=True)
class Call:
    """One request. `write` is its number among the writes, 0 for a read, and `at` when it came, monotonic seconds.

    `status` is what the API server answered to a write; 0 where it was not asked, or gave no answer.
    """

    method: str
    path: str
    query: dict[str, str]
    write: int
    at: float
    status: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_fresh(self) -> bool:
        """Whether it reads from the store itself, and neither watches nor takes what a cache has."""
        return self.method == "GET" and not {"watch", "resourceVersion"} & self.query.keys()


@dataclass(kw_only=True)
class Fault:
    """What is to happen to the next `times` requests that `on` chooses.

    Before they are forwarded, or, for writes only, after the API server has carried them out and before its answer is
    passed on: `does` is called, and `then` the request goes on as usual ("pass"), or the connection ends without an
    answer ("drop"), or stays without one until the client leaves ("hold"), or an answer begins that comes to no end
    ("trickle"), or this HTTP status is the answer, or an object as this says.
    """

    on: Callable[[Call], bool]
    moment: Moment
    does: Callable[[Call], object] = lambda _call: None
    then: Literal["pass", "drop", "hold", "trickle"] | int | Callable[[Call], object] = "drop"
    retry_after: int = 0
    times: int = 1


@dataclass
class Proxy:
    """Listens on a free port of the loopback address while it is used as a context manager.

    `upstream` is the API server's address, http or https; `authority` is the file of its certificate's authority.
    """

    upstream: str
    authority: str | None = None
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        address = urlsplit(self.upstream)
        self._address = (str(address.hostname), address.port or 443)
        self._tls = ssl.create_default_context(cafile=self.authority) if address.scheme == "https" else None
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._open: set[socket.socket] = set()
        self._away = False
        self._silent_since = float("-inf")
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def writes(self) -> list[Call]:
        """The writes so far."""
        with self._lock:
            return [call for call in self.calls if call.write]

    def plan(self, *faults: Fault) -> None:
        """These faults from now on, and no others; the first that chooses a request has it."""
        with self._lock:
            self._faults = list(faults)

    @contextmanager
    def away(self) -> Iterator[None]:
        """For a while as if there were no API server: open connections end, new ones get no answer."""
        with self._lock:
            self._away = True
        self._cut()
        try:
            yield
        finally:
            with self._lock:
                self._away = False

    def silence(self) -> None:
        """Nothing more comes by the reads that are open now, watches among them, and they do not end."""
        self._silent_since = time.monotonic()

    def is_silent(self, call: Call) -> bool:
        """Whether this read was open then."""
        return call.at <= self._silent_since

    def __enter__(self) -> Proxy:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, name="proxy", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._away = True
        self._server.shutdown()
        self._server.server_close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    # That of TLS takes away its state, under the hands of the thread that reads.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    # -- in the threads of the connections

    def arrived(self, method: str, target: str) -> Call | None:
        """Count a request; None while there is no API server."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        with self._lock:
            if self._away:
                return None
            write = 1 + sum(bool(call.write) for call in self.calls) if method in WRITES else 0
            call = Call(method=method, path=parts.path, query=query, write=write, at=time.monotonic())
            self.calls.append(call)
            return call

    def fault(self, call: Call, moment: Moment) -> Fault | None:
        """What is planned for this request at this moment; it is used up by that."""
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fault.moment == moment and fault.on(call):
                    fault.times -= 1
                    return fault
        return None

    @contextmanager
    def connected(self, head: bytes, body: bytes) -> Iterator[socket.socket]:
        """A connection to the API server on which this request was sent. Raises OSError."""
        plain = socket.create_connection(self._address, UPSTREAM_SECONDS)
        connection = self._tls.wrap_socket(plain, server_hostname=self._address[0]) if self._tls else plain
        with connection:
            with self._lock:
                self._open.add(connection)
            try:
                connection.sendall(head + body)
                yield connection
            finally:
                with self._lock:
                    self._open.discard(connection)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    proxy: Proxy

    def handle_error(self, *_: object) -> None:
        """A client that was killed has left its connection, and an API server that was has left ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_any(self) -> None:
        self.close_connection = True
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy = self.server.proxy
        call = proxy.arrived(self.command, self.path)
        if call is None or self._struck(call, "before"):
            return
        with proxy.connected(self._head(), body) as upstream:
            if not call.write:
                self._relay(upstream, call)
                return
            answer = b"".join(iter(lambda: upstream.recv(_PIECE), b""))
            call.status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
            if not self._struck(call, "after"):
                self.connection.sendall(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def _struck(self, call: Call, moment: Moment) -> bool:
        """Do what is planned; whether the request ends with that."""
        fault = self.server.proxy.fault(call, moment)
        if fault is None:
            return False
        fault.does(call)
        if fault.then == "hold":
            select.select([self.connection], [], [])
        elif fault.then == "trickle":
            self._begin(200, _ENDLESS, 0)
            while not select.select([self.connection], [], [], _TRICKLE_SECONDS)[0]:
                self.wfile.write(b" ")
        elif not isinstance(fault.then, str):
            code, answer = (
                (fault.then, b"") if isinstance(fault.then, int) else (200, _json(fault.then(call)))
            )
            self._begin(code, len(answer), fault.retry_after)
            self.wfile.write(answer)
        return fault.then != "pass"

    def _begin(self, code: int, length: int, retry_after: int) -> None:
        """The head of an answer of the proxy's own."""
        self.send_response(code)
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def _head(self) -> bytes:
        """The request's head for the API server, which is to close the connection when it has answered."""
        host, port = self.server.proxy._address
        kept = [
            f"{name}: {value}"
            for name, value in self.headers.items()
            if name.lower() not in ("host", "connection")
        ]
        lines = [
            f"{self.command} {self.path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Connection: close",
            *kept,
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _relay(self, upstream: socket.socket, call: Call) -> None:
        """Pass the answer on as it comes, until its end or until the client has left."""
        proxy = self.server.proxy
        upstream.setblocking(False)
        while True:
            try:
                piece = upstream.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError):
                readable, _, _ = select.select([upstream, self.connection], [], [])
                # A client that waits for an answer has nothing to say.
                if self.connection in readable:
                    return
                continue
            if proxy.is_silent(call):
                select.select([self.connection], [], [])
                return
            if not piece:
                return
            self.connection.sendall(piece)

    def log_message(self, *_: object) -> None:
        """Silent: `Proxy.calls` tells."""
