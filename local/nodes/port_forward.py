"""Serve `kubectl port-forward`: connections to a pod, multiplexed by SPDY/3.1. `serve` is the entry point.

The API server upgrades to SPDY at the kubelet for every client, also for the WebSocket of a recent kubectl
(k8s.io/apiserver@v0.35.4, pkg/util/proxy/streamtunnel.go). A client opens two streams per connection, `error` and
`data`, with one requestID (k8s.io/kubelet@v0.35.4, pkg/cri/streaming/portforward/httpstream.go).

Frames: https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/. Windows are not used, because Kubernetes'
own implementation has none (github.com/moby/spdystream).
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

PROTOCOL = "portforward.k8s.io"
CHUNK = 1 << 15
CONNECT_SECONDS = 10.0
# The data that waits for a pod's program, before the client's other messages, and with them its end, wait for it.
PENDING_BYTES = 1 << 24
# A compressed block may be a thousand times as long.
HEADER_BYTES = 1 << 16
DATA, SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 0, 1, 2, 3, 6, 7
CONTROL, FIN = 0x80030000, 1
PROTOCOL_ERROR = 1
HEADER_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
# The dictionary of the compressed headers, section 2.6.10.1: words with their lengths, then text.
DICTIONARY = b"".join(
    struct.pack(">I", len(word)) + word.encode()
    for word in (
        *HEADER_WORDS.split(),
        *("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"),
    )
) + (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    b"Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    b"Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    b"00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    b"application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    b"charset=iso-8859-1,utf-,*,enq=0."
)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[Connection]]


def control_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">II", CONTROL | kind, len(payload)) + payload


def data_frame(stream: int, data: bytes, flags: int = 0) -> bytes:
    """Return a data frame of at most 16 MiB. The flag FIN ends this direction of the stream."""
    return struct.pack(">II", stream, flags << 24 | len(data)) + data


def parse_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a decompressed block: a count, then names and values with their lengths.

    Raises:
        struct.error: The block is too short.
    """
    texts, offset = [], 4
    for _ in range(2 * struct.unpack_from(">I", block)[0]):
        (size,) = struct.unpack_from(">I", block, offset)
        texts.append(block[offset + 4 : offset + 4 + size].decode(errors="replace"))
        offset += 4 + size
    return dict(zip(texts[::2], texts[1::2], strict=True))


@dataclass
class Forward:
    """One connection: its two streams, the port, and the pod's side once it is connected."""

    port: int
    streams: dict[str, int] = field(default_factory=dict)
    writer: asyncio.StreamWriter | None = None
    output: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Close the pod's side, without the data that its program has not read."""
        if self.output is not None:
            self.output.cancel()
        if self.writer is not None:
            self.writer.transport.abort()


class Session:
    """The connections of one client. `pod` names the pod in messages."""

    def __init__(self, client: Connection, connect: Connect, pod: str) -> None:
        self.reader, self.writer = client
        self.connect = connect
        self.pod = pod
        self.waiting: dict[str, Forward] = {}  # by requestID, until both streams are open
        self.by_stream: dict[int, Forward] = {}  # by data stream
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj()

    async def run(self) -> None:
        """Serve until the client ends the session or disconnects."""
        try:
            while True:
                first, second = struct.unpack(">II", await self.reader.readexactly(8))
                payload = await self.reader.readexactly(second & 0xFFFFFF)
                if first < CONTROL:
                    await self._receive(first, payload, second >> 24)
                elif first & 0xFFFF == SYN_STREAM:
                    await self._open(payload)
                elif first & 0xFFFF == RST_STREAM:
                    self._end(struct.unpack_from(">I", payload)[0])
                elif first & 0xFFFF == PING:
                    self.writer.write(control_frame(PING, payload))
                elif first & 0xFFFF == GOAWAY:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, struct.error, zlib.error):
            return  # the client has disconnected, or does not speak SPDY
        finally:
            for forward in self.by_stream.values():
                forward.close()

    async def _open(self, payload: bytes) -> None:
        """Accept a stream, and connect to the pod when a connection has both."""
        (stream,) = struct.unpack_from(">I", payload)
        headers = parse_headers(self._inflate.decompress(payload[10:], HEADER_BYTES))
        if self._inflate.unconsumed_tail:
            raise zlib.error(f"the headers of stream {stream} have more than {HEADER_BYTES} bytes")
        kind, port = headers.get("streamtype", ""), headers.get("port", "")
        if kind not in ("error", "data") or not (port.isdecimal() and 0 < int(port) < 1 << 16):
            self.writer.write(control_frame(RST_STREAM, struct.pack(">II", stream, PROTOCOL_ERROR)))
            return
        no_headers = self._deflate.compress(bytes(4)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self.writer.write(control_frame(SYN_REPLY, struct.pack(">I", stream) + no_headers))
        request = headers.get("requestid", "")
        forward = self.waiting.setdefault(request, Forward(int(port)))
        forward.streams[kind] = stream
        if len(forward.streams) == 2:
            await self._connect(self.waiting.pop(request))

    async def _connect(self, forward: Forward) -> None:
        stream = forward.streams["data"]
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, forward.writer = await self.connect(forward.port)
        except OSError as error:
            reason = str(error) or f"no connection within {CONNECT_SECONDS:g} s"  # a TimeoutError has no text
            message = f"error forwarding port {forward.port} to pod {self.pod}: {reason}"
            self._finish(forward, message.encode())
            return
        forward.writer.transport.set_write_buffer_limits(PENDING_BYTES)
        self.by_stream[stream] = forward
        forward.output = asyncio.create_task(self._send(forward, reader))

    async def _send(self, forward: Forward, reader: asyncio.StreamReader) -> None:
        """Send the pod's output until its end, which ends the connection."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                self.writer.write(data_frame(forward.streams["data"], data))
                await self.writer.drain()
        self._finish(forward, b"")
        del self.by_stream[forward.streams["data"]]
        if forward.writer is not None:
            forward.writer.close()

    def _finish(self, forward: Forward, message: bytes) -> None:
        """End both streams. The client reads the `error` stream to its end, and shows what it contains."""
        self.writer.write(data_frame(forward.streams["data"], b"", FIN))
        self.writer.write(data_frame(forward.streams["error"], message, FIN))

    async def _receive(self, stream: int, data: bytes, flags: int) -> None:
        """Write the client's data, and the end of its data, to the pod."""
        forward = self.by_stream.get(stream)
        if forward is None or forward.writer is None:
            return
        try:
            if data:
                forward.writer.write(data)
                await forward.writer.drain()
            if flags & FIN:
                forward.writer.write_eof()
        except OSError:  # the pod does not read any more; its output still counts
            pass

    def _end(self, stream: int) -> None:
        """Close a connection whose data stream was reset. The client still waits for the end of the error stream.

        Source: k8s.io/client-go, tools/portforward/portforward.go, handleConnection.
        """
        forward = self.by_stream.pop(stream, None)
        if forward is not None:
            forward.close()
            self.writer.write(data_frame(forward.streams["error"], b"", FIN))


async def serve(client: Connection, connect: Connect, pod: str) -> None:
    """Serve one client after its upgrade. `connect` connects to a port of the pod; its OSError is for the client."""
    session = Session(client, connect, pod)
    try:
        await session.run()
    finally:
        session.writer.close()
