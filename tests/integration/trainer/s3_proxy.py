"""A proxy between boto3 and S3: it forwards and counts requests, and injects faults."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import boto3
from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-west-2"}
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Fault:
    """A fault of the next `times` requests whose "METHOD /path?query" matches the pattern `on`.

    `status` and `code` replace S3's response; `cut` truncates the response's body to that number of bytes;
    `lose` forwards the request and closes the connection without a response; `delay` is in seconds.
    """

    on: str
    times: int = 1
    status: int = 0
    code: str = ""
    cut: int | None = None
    lose: bool = False
    delay: float = 0.0


@dataclass
class S3Proxy:
    """A context manager that serves on the loopback address; `upstream` is the URL of S3."""

    upstream: str
    seen: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.address = urlsplit(self.upstream)
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def count(self, pattern: str) -> int:
        with self.lock:
            return sum(bool(re.search(pattern, each)) for each in self.seen)

    def take(self, request: str) -> Fault | None:
        with self.lock:
            self.seen.append(request)
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.on, request):
                    fault.times -= 1
                    return fault
        return None

    def __enter__(self) -> S3Proxy:
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: S3Proxy
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        fault = self.proxy.take(f"{self.command} {self.path}") or Fault("")
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # answered by handle_expect_100 already
        body = self._body()
        time.sleep(fault.delay)
        if fault.status:
            text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>planned</Message></Error>"
            self._answer(fault.status, {"Content-Type": "application/xml"}, text.encode(), None)
            return
        upstream = http.client.HTTPConnection(self.proxy.address.netloc, timeout=30)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in HOP | {"expect"}
        }
        upstream.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
        reply = upstream.getresponse()
        answer = reply.read()
        upstream.close()
        if fault.lose:
            self.close_connection = True
            return
        headers_to_pass = {name: value for name, value in reply.getheaders() if name.lower() not in HOP}
        if self.command == "HEAD":
            headers_to_pass["Content-Length"] = reply.getheader("Content-Length") or "0"
        self._answer(reply.status, headers_to_pass, answer, fault.cut)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        raw = b""  # forwarded unchanged: S3 decodes aws-chunked bodies itself
        while size := int(self.rfile.readline().split(b";")[0], 16):
            raw += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return raw

    def _answer(self, status: int, headers: dict[str, str], body: bytes, cut: int | None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if cut is not None:
            self.close_connection = True
        self.wfile.write(body[:cut])

    def log_message(self, *_: object) -> None:
        """Do nothing: the tests count requests."""


@contextmanager
def serve_s3(bucket: str) -> Iterator[Any]:
    """Yield a client of moto's S3 with this bucket. Each test file needs its own bucket name."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-west-2", **keys)
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield client
    server.stop()
