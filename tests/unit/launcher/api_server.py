"""A tiny API server in this process: keeps objects by path, and can be told to misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from launcher.kube.rest import Patience, Rest, client_of

Object = dict[str, Any]
# An answer instead of the usual one: status, headers, body; None closes the connection without one.
Fault = tuple[int, dict[str, str], bytes] | None
QUICK = Patience(total=2.0, first=0.01, longest=0.02)


def status(code: int, reason: str, message: str = "") -> tuple[int, Object]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message or reason}


class FakeApi:
    """`faults` are consumed one per request; `after` says whether the request is carried out before its fault.

    `refused` has requests that are answered with 403."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.faults: list[Fault] = []
        self.after = False
        self.refused: set[tuple[str, str]] = set()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.on_request: Callable[[str, str], None] = lambda _method, _path: None
        self.url = ""
        self._uids = 0
        self._lock = threading.Lock()

    def rest(self, **options: Any) -> Rest:
        settings = client.Configuration()
        settings.host = self.url
        return Rest(client_of(settings), options.pop("patience", QUICK), **options)

    def put(self, path: str, item: Object) -> Object:
        self._uids += 1
        item["metadata"].setdefault("uid", f"uid-{self._uids}")
        item["metadata"]["resourceVersion"] = str(self._uids)
        self.objects[path] = item
        return item

    def names(self, path: str) -> list[str]:
        return sorted(key.removeprefix(f"{path}/") for key in self.objects if key.rpartition("/")[0] == path)

    def answer(self, method: str, target: str, body: Object) -> tuple[int, Object]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        with self._lock:
            self.requests.append((method, path, {key: value[0] for key, value in query.items()}))
            self.on_request(method, path)
            if (method, path) in self.refused:
                return status(403, "Forbidden")
            answers = {"GET": self._get, "POST": self._post, "PUT": self._put, "DELETE": self._delete}
            return answers[method](path, query, body)

    def _get(self, path: str, query: dict[str, list[str]], _body: Object) -> tuple[int, Object]:
        if path in self.objects:
            return 200, self.objects[path]
        if path.rpartition("/")[2] in ("pods", "nodes", "nodeclaims", "events", "pytorchjobs"):
            wanted = dict(part.split("=") for part in query.get("labelSelector", [""])[0].split(",") if part)
            items = [
                item
                for key, item in self.objects.items()
                if key.rpartition("/")[0] == path or (path == "/api/v1/pods" and "/pods/" in key)
                if wanted.items() <= (item["metadata"].get("labels") or {}).items()
            ]
            return 200, {"items": items}
        return status(404, "NotFound", f"{path} not found")

    def _post(self, path: str, _query: dict[str, list[str]], body: Object) -> tuple[int, Object]:
        meta = body["metadata"]
        if "generateName" in meta:
            meta["name"] = f"{meta['generateName']}{self._uids:05d}"
        key = f"{path}/{meta['name']}"
        if key in self.objects:
            return status(409, "AlreadyExists")
        return 201, self.put(key, body)

    def _put(self, path: str, _query: dict[str, list[str]], body: Object) -> tuple[int, Object]:
        if path not in self.objects:
            return status(404, "NotFound")
        if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            return status(409, "Conflict", "the object has been modified")
        return 200, self.put(path, body)

    def _delete(self, path: str, _query: dict[str, list[str]], body: Object) -> tuple[int, Object]:
        if path not in self.objects:
            return status(404, "NotFound")
        if body["preconditions"]["uid"] != self.objects[path]["metadata"]["uid"]:
            return status(409, "Conflict")
        return 200, self.objects.pop(path)


@contextmanager
def serving(api: FakeApi) -> Iterator[FakeApi]:
    """The API on a free port of the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # head and body in one packet, or each answer takes 40 ms

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            faulty = bool(api.faults)
            fault = api.faults.pop(0) if faulty else None
            if not faulty or api.after:
                code, answer = api.answer(self.command, self.path, body)
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
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
