"""A tiny API server in this process: keeps objects by path, lists and watches them, and can be set to misbehave."""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from tests.unit.launcher.api_history import History, Object, field_value
from trainyard.k8s.client import Client, RetryPolicy, api_client

# An answer instead of the usual one: status, headers, body; None closes the connection without one.
Fault = tuple[int, dict[str, str], bytes] | None
QUICK = RetryPolicy(timeout=2.0, initial_delay=0.01, max_delay=0.02)
_LISTED = (
    *("pods", "nodes", "nodeclaims", "nodepools", "events", "pytorchjobs", "torchrunjobs", "torchrunqueues"),
    *("jobs", "services", "persistentvolumeclaims", "storageclasses", "/queues", "podgroups"),
)


def until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for something to hold, and fails if it does not in this time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def status(code: int, reason: str, message: str = "") -> tuple[int, Object]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message or reason}


def _merged(before: Any, after: Any) -> Any:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    return {**before, **{key: _merged(before.get(key), value) for key, value in after.items()}}


def _own(body: Object) -> Object:
    """What the subresource `status` takes of an object."""
    return {"status": body.get("status", {}), "metadata": body["metadata"]}


class FakeApi(History):
    """`faults` are consumed one per request; `after` says whether the request is carried out before its fault.

    `refused` has requests that are answered with 403 and the message `refusal`. `list_seconds` is how long a list takes
    to begin, `piece_seconds` the pause before each fifth of an answer, and `cached_version` the version that a list
    from the cache shows (None: the present one). `gone_status` says whether a watch from a version that is
    no longer there is refused with status 410 rather than with an event. `unready` is how often it will still say that
    it is not ready: until then it knows of no right. `clients` is closed before the server ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clients = ExitStack()
        self.faults: list[Fault] = []
        self.after = False
        self.refused: set[tuple[str, str]] = set()
        self.refusal = ""
        self.deletions: list[Object] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.on_request: Callable[[str, str], None] = lambda _method, _path: None
        self.list_seconds = 0.0
        self.piece_seconds = 0.0
        self.cached_version: int | None = None
        self.gone_status = False
        self.unready = 0
        self.logs: dict[str, list[bytes]] = {}
        self.url = ""

    def client(self, **options: Any) -> Client:
        settings = client.Configuration()
        settings.host = self.url
        return Client(api_client(settings), options.pop("retry", QUICK), **options)

    def names(self, path: str) -> list[str]:
        with self.news:
            return sorted(
                key.removeprefix(f"{path}/") for key in self.objects if key.rpartition("/")[0] == path
            )

    def asked(self, verb: str) -> list[str]:
        """The paths of the lists or watches so far."""
        return [
            path
            for method, path, query in self.requests
            if method == "GET" and (("watch" in query) == (verb == "watch")) and path.endswith(_LISTED)
        ]

    def answer(self, method: str, target: str, body: Object) -> tuple[int, Object] | Iterator[bytes | None]:
        """Status and object, or the lines of a watch; None there closes the connection."""
        path = urlsplit(target).path
        query = {key: value[0] for key, value in parse_qs(urlsplit(target).query).items()}
        listed = method == "GET" and path.endswith(_LISTED)
        if listed and "watch" not in query and self.list_seconds:
            time.sleep(self.list_seconds)
        with self.news:
            self.requests.append((method, path, query))
            self.on_request(method, path)
            if path == "/readyz":
                self.unready, unready = max(0, self.unready - 1), self.unready
                return status(500, "InternalError", "informer-sync failed") if unready else (200, {})
            if path in self.logs:
                return iter(self.logs[path])
            if self.unready or (method, path) in self.refused:
                return status(403, "Forbidden", self.refusal)
            if listed and "watch" in query:
                if self.gone_status and self.is_gone(query):
                    return status(410, "Expired", "too old resource version")
                return self.watch(path, query)
            answers = {
                "GET": self._get,
                "POST": self._post,
                "PUT": self._put,
                "PATCH": self._apply,
                "DELETE": self._delete,
            }
            return answers[method](path, query, body)

    def _get(self, path: str, query: dict[str, str], _body: Object) -> tuple[int, Object]:
        if path in self.objects:
            return 200, self.objects[path]
        if path.endswith(_LISTED):
            cached = self.cached_version if query.get("resourceVersion") == "0" else None
            version = self.version if cached is None else cached
            items = self.listed(path, query, version)
            meta = {"resourceVersion": str(version)}
            # As the real one: custom resources have their fields in alphabetical order.
            return 200, {"metadata": meta, "items": items} if path.startswith("/api/") else {
                "items": items,
                "metadata": meta,
            }
        return status(404, "NotFound", f"{path} not found")

    def _post(self, path: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        meta = body["metadata"]
        if "generateName" in meta:
            meta["name"] = f"{meta['generateName']}{self.version:05d}"
        key = f"{path}/{meta['name']}"
        if key in self.objects:
            return status(409, "AlreadyExists")
        if query.get("dryRun") == "All":
            return 201, body
        return 201, self.put(key, body)

    def _put(self, path: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        if path.endswith("/status") and path not in self.objects:
            whole = path.removesuffix("/status")
            return self._put(whole, query, {**self.objects.get(whole, {}), **_own(body)})
        if path not in self.objects:
            return status(404, "NotFound")
        if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            return status(409, "Conflict", "the object has been modified")
        return 200, self.put(path, body)

    def _apply(self, path: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        """Server-side apply (with `force`), and a merge patch: the fields of `body` are set, others stay."""
        if "force" not in query and path not in self.objects:
            return status(404, "NotFound", f"{path} not found")
        item = self.objects.get(path, {})
        read = field_value(body, "metadata.resourceVersion")
        if read and read != item["metadata"]["resourceVersion"]:
            return status(409, "Conflict", "the object has been modified")
        item = _merged(item, body)
        changed = self.put(path, item)
        if "deletionTimestamp" in item["metadata"] and not item["metadata"].get("finalizers"):
            self.remove(path)
        return 200, changed

    def _delete(self, path: str, _query: dict[str, str], body: Object) -> tuple[int, Object]:
        self.deletions.append(body)
        if path not in self.objects:
            return status(404, "NotFound")
        if "preconditions" in body and body["preconditions"]["uid"] != field_value(
            self.objects[path], "metadata.uid"
        ):
            return status(409, "Conflict")
        return 200, self.remove(path)


@contextmanager
def serving(api: FakeApi) -> Iterator[FakeApi]:
    """The API on a free port of the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # head and body in one packet, or each answer takes 40 ms

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            with api.news:
                faulty = bool(api.faults)
                fault = api.faults.pop(0) if faulty else None
            if not faulty or api.after:
                answered = api.answer(self.command, self.path, body)
                if isinstance(answered, Iterator):
                    self.stream(answered)
                    return
                code, answer = answered
                data, headers = json.dumps(answer).encode(), {}
            if faulty:
                if fault is None:
                    self.close_connection = True
                    return
                code, headers, data = fault
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            fifth = len(data) // 5 + 1
            for start in range(0, len(data), fifth) if api.piece_seconds else ():
                time.sleep(api.piece_seconds)
                self.wfile.write(data[start : start + fifth])
                self.wfile.flush()
            if not api.piece_seconds:
                self.wfile.write(data)

        def stream(self, pieces: Iterator[bytes | None]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            try:
                for piece in pieces:
                    if piece is None:
                        self.close_connection = True
                        return
                    if not piece and self.left():
                        return
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # the client has left
                self.close_connection = True

        def left(self) -> bool:
            """Whether the client has closed its side."""
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

        do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            """Silent."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64  # of five, a sixth client that connects at once is let in a second later

        def handle_error(self, *_: object) -> None:
            """Says nothing of clients that have left; a test that needed the answer fails by itself."""
            if not isinstance(sys.exc_info()[1], ConnectionError):
                traceback.print_exc()

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        api.clients.close()
        api.end()
        server.shutdown()
        server.server_close()
