"""`kubectl port-forward` at the kubelets' server: a SPDY client and a pod that is a server on this machine."""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from local.nodes import port_forward as spdy
from local.nodes.process import listens_on_loopback
from tests.unit.nodes.event_loop import SECONDS, in_event_loop
from tests.unit.nodes.kubelet_server import client_tls, serving

UPGRADE = (
    "POST /portForward/training/one HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    "X-Stream-Protocol-Version: portforward.k8s.io\r\nContent-Length: 0\r\n\r\n"
)


class Client:
    """A client as client-go is: one session, two streams per connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
        self._inflate = zlib.decompressobj(zdict=spdy.DICTIONARY)
        self.received: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.control: list[tuple[int, bytes]] = []

    def open(self, stream: int, **headers: str) -> None:
        block = struct.pack(">I", len(headers))
        for text in (each for pair in headers.items() for each in pair):
            block += struct.pack(">I", len(text)) + text.encode()
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self.writer.write(spdy.control_frame(spdy.SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + packed))

    def connect(self, error: int, port: int, request: str = "0") -> int:
        """Open the streams of a connection, and return the one for data."""
        self.open(error, streamtype="error", port=str(port), requestid=request)
        self.open(error + 2, streamtype="data", port=str(port), requestid=request)
        return error + 2

    def send(self, stream: int, data: bytes, flags: int = 0) -> None:
        self.writer.write(spdy.data_frame(stream, data, flags))

    async def read_until(self, done: Callable[[], bool]) -> None:
        while not done():
            first, second = struct.unpack(">II", await self.reader.readexactly(8))
            payload = await self.reader.readexactly(second & 0xFFFFFF)
            if first >= spdy.CONTROL:
                if first & 0xFFFF == spdy.SYN_REPLY:
                    assert self._inflate.decompress(payload[4:]) == bytes(4)
                self.control.append((first & 0xFFFF, payload))
                continue
            self.received[first] = self.received.get(first, b"") + payload
            if second >> 24 & spdy.FIN:
                self.ended.add(first)


def forward(pki: Path, client: Callable[[Client, int], Awaitable[None]]) -> None:
    """Run a client. The pod has one port, which answers each line in capitals and ends with its client's data."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def connect(wanted: int) -> Any:
            assert wanted in (port, 1)
            return await asyncio.open_connection("127.0.0.1", wanted)

        pod = SimpleNamespace(label="training/one", uid="u1", simulated=False, connect=connect)
        async with serving(pki, pod) as (kubelet, kubelet_port):
            reader, writer = await asyncio.open_connection("127.0.0.1", kubelet_port, ssl=client_tls(pki))
            writer.write(UPGRADE.encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 101 ")
            assert "\r\nupgrade: spdy/3.1\r\n" in head
            assert "\r\nx-stream-protocol-version: portforward.k8s.io\r\n" in head
            await client(Client(reader, writer), port)
            writer.close()
            while kubelet._runner is None or kubelet._runner.server.connections:
                await asyncio.sleep(0.01)  # the server forgets the connection
        server.close()

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_port_forward_carries_several_connections_at_once(pki: Path) -> None:
    async def client(client: Client, port: int) -> None:
        first, second = client.connect(1, port), client.connect(5, port, "1")
        client.send(second, b"two\n")
        client.send(first, b"one\n")
        await client.read_until(lambda: len(client.received) == 2)
        client.send(first, b"x" * 60_000 + b"\n", spdy.FIN)
        await client.read_until(lambda: {1, first} <= client.ended)
        assert client.received[first] == b"ONE\n" + b"X" * 60_000 + b"\n"
        assert client.received[second] == b"TWO\n"
        assert client.received[1] == b"", "an error stream without an error"
        assert 5 not in client.ended, "the other connection continues"
        assert [kind for kind, _ in client.control] == [spdy.SYN_REPLY] * 4

    forward(pki, client)


def test_port_forward_to_closed_port_reports_it(pki: Path) -> None:
    async def client(client: Client, port: int) -> None:
        data = client.connect(1, 1)
        await client.read_until(lambda: {1, data} <= client.ended)
        assert client.received[1].startswith(b"error forwarding port 1 to pod training/one, uid u1: ")
        data = client.connect(5, port, "1")
        client.send(data, b"again\n")
        await client.read_until(lambda: client.received.get(data) == b"AGAIN\n")

    forward(pki, client)


def test_port_forward_refuses_a_bad_stream_and_answers_pings(pki: Path) -> None:
    async def client(client: Client, port: int) -> None:
        client.open(1, streamtype="error", port="70000", requestid="0")
        client.open(3, streamtype="other", port=str(port), requestid="0")
        client.writer.write(spdy.control_frame(spdy.PING, b"\0\0\0\1"))
        await client.read_until(lambda: len(client.control) == 3)
        reset = [(spdy.RST_STREAM, struct.pack(">II", stream, 1)) for stream in (1, 3)]
        assert client.control == [*reset, (spdy.PING, b"\0\0\0\1")]

    forward(pki, client)


@in_event_loop
async def test_port_forward_reset_or_goaway_closes_the_pods_side() -> None:
    closed: list[bytes] = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closed.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    incoming = asyncio.StreamReader()
    writer: Any = SimpleNamespace(write=incoming.feed_data)
    client, port = Client(incoming, writer), server.sockets[0].getsockname()[1]
    reset = client.connect(1, port)
    client.connect(5, port, "1")
    writer.write(spdy.control_frame(spdy.RST_STREAM, struct.pack(">II", reset, 5)))
    writer.write(spdy.control_frame(spdy.GOAWAY, bytes(8)))
    sent: list[bytes] = []
    outgoing: Any = SimpleNamespace(write=sent.append)
    connect = partial(asyncio.open_connection, "127.0.0.1")
    await spdy.Session((incoming, outgoing), connect, "one").run()
    # client-go waits for the end of the error stream after a reset.
    assert spdy.data_frame(1, b"", spdy.FIN) in sent
    assert spdy.data_frame(5, b"", spdy.FIN) not in sent
    while len(closed) < 2:
        await asyncio.sleep(0.01)
    server.close()
    assert closed == [b"", b""]


@in_event_loop
async def test_port_forward_of_unread_data_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy, "CONNECT_SECONDS", 0.05)
    held: list[asyncio.StreamWriter] = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)  # never read

    async def connect(port: int) -> Any:
        if port == 1:
            await asyncio.sleep(SECONDS)
        return await asyncio.open_connection("127.0.0.1", port)

    server = await asyncio.start_server(hold, "127.0.0.1", 0, limit=1)
    incoming, frames = asyncio.StreamReader(), asyncio.StreamReader()
    outgoing: Any = SimpleNamespace(write=frames.feed_data, drain=partial(asyncio.sleep, 0))
    writer: Any = SimpleNamespace(write=incoming.feed_data)
    client, port = Client(frames, writer), server.sockets[0].getsockname()[1]
    data = client.connect(1, port)
    for _ in range(12):
        client.send(data, bytes(1 << 20))
    client.connect(5, 1, "1")
    session = asyncio.create_task(spdy.Session((incoming, outgoing), connect, "one").run())
    await client.read_until(lambda: 5 in client.ended)
    assert client.received[5] == b"error forwarding port 1 to pod one: no connection within 0.05 s"
    incoming.feed_eof()
    await session
    for each in held:
        each.transport.abort()
    server.close()


def test_port_forward_with_endless_headers_ends_the_session(pki: Path) -> None:
    async def client(client: Client, port: int) -> None:
        client.open(1, streamtype="error", port=str(port), requestid="0" * (1 << 20))
        assert await client.reader.read() == b""

    forward(pki, client)


@in_event_loop
async def test_port_forward_without_spdy_is_refused(pki: Path) -> None:
    async with (
        serving(pki, SimpleNamespace(simulated=False, label="training/one")) as (_, port),
        aiohttp.ClientSession() as session,
        session.post(f"https://127.0.0.1:{port}/portForward/training/one", ssl=client_tls(pki)) as answer,
    ):
        assert (answer.status, (await answer.json())["code"]) == (400, 400)


@in_event_loop
async def test_loopback_port_belongs_to_the_pod_that_listens() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert listens_on_loopback([os.getpid()], port)
    assert not listens_on_loopback([], port)
    server.close()
    await server.wait_closed()
    assert not listens_on_loopback([os.getpid()], port)
