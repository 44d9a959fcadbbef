"""Serve `kubectl exec` and `attach`: the streams of a program on one WebSocket. `serve` is the entry point.

The first byte of a message is its channel, as in versions 4 and 5 of Kubernetes' remote command protocol
(k8s.io/apimachinery, pkg/util/remotecommand/constants.go). The API server passes its client's WebSocket through,
because `local/cluster/commands.py` turns off its translation to SPDY.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web
from multidict import MultiMapping

from local.nodes.port_forward import PENDING_BYTES
from local.nodes.process import Entry

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CHUNK = 1 << 15
SIGNALLED = 128
# The time that a command has to end after its client has disconnected.
_TIDY_SECONDS = 1.0


@dataclass(frozen=True)
class Request:
    """The streams that the client requests, and for exec a command. A terminal has one stream for both outputs."""

    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    terminal: bool = False


def parse_request(query: MultiMapping[str], verb: str) -> Request:
    """Return the request of the API server. `verb` is exec, which needs a command, or attach.

    Raises:
        ValueError: A parameter is missing or not supported; the message names it.
    """

    def on(name: str) -> bool:
        return query.get(name, "") in ("1", "true")

    found = Request(
        tuple(query.getall("command", [])), on("input"), on("output"), on("error"), terminal=on("tty")
    )
    if verb == "exec" and not found.command:
        raise ValueError("exec: parameter `command` is missing; give the program and its arguments")
    if verb == "attach" and found.terminal:
        raise ValueError(
            "attach: a container has no terminal on the local nodes. Remove `tty: true` from the pod, or use "
            "`kubectl exec -it`"
        )
    if not (found.stdin or found.stdout or found.stderr):
        raise ValueError(f"{verb}: request at least one of the streams `input`, `output` and `error`")
    return found


def exit_status(code: int) -> bytes:
    """Return the message on the status channel for an exit code, a metav1.Status."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    status = {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
    return json.dumps(status).encode()


class _UntilGone(asyncio.StreamReaderProtocol):
    """Reads a terminal until its other end is closed.

    The read then fails with EIO, which is the normal end: the earlier output still counts.
    """

    def connection_lost(self, _error: Exception | None) -> None:
        super().connection_lost(None)


def _close(*descriptors: int) -> None:
    """Close descriptors, each once. Negative numbers are none, such as subprocess.DEVNULL."""
    for each in set(descriptors):
        if each >= 0:
            os.close(each)


@dataclass
class Session:
    """A program whose streams the client gets. `outputs` are by channel, in parts."""

    outputs: dict[int, AsyncIterator[bytes]] = field(default_factory=dict)
    input: asyncio.StreamWriter | None = None
    _transports: list[asyncio.BaseTransport] = field(default_factory=list)

    @classmethod
    async def attach(cls, log: AsyncIterator[bytes], stdin: int | None) -> Session:
        """Return the session of a running container: the log, which has both outputs, and the pipe of its input."""
        session = cls({STDOUT: log})
        if stdin is not None:
            await session._write(stdin)
        return session

    async def _write(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(descriptor, "wb", 0)
        )
        # While `drain` waits for a program that does not read, nothing notices that the client has disconnected.
        transport.set_write_buffer_limits(PENDING_BYTES)
        self._transports.append(transport)
        self.input = asyncio.StreamWriter(transport, protocol, None, loop)

    async def receive(self, message: bytes) -> None:
        """Handle a message of the client: input, or the end of input."""
        channel, data = message[0], message[1:]
        if self.input is None:
            return
        if channel == STDIN and data:
            with contextlib.suppress(ConnectionError):  # it does not read any more
                self.input.write(data)
                await self.input.drain()
        elif channel == CLOSE and data == bytes([STDIN]):
            self.input.close()

    async def wait(self) -> int:
        """Return the exit code after the end of all outputs."""
        return 0

    async def end(self) -> None:
        """Close the streams."""
        for transport in self._transports:
            transport.close()


@dataclass
class Command(Session):
    """A started command. `terminal` is the descriptor whose size can be set."""

    process: asyncio.subprocess.Process = field(kw_only=True)
    terminal: int | None = None

    @classmethod
    async def start(cls, entry: Entry, streams: Request) -> Command:
        """Start the command in the container.

        Raises:
            OSError: It can't be started.
        """
        argv = entry.command(streams.command, streams.terminal)
        variables = entry.variables
        its = [asyncio.subprocess.DEVNULL] * 3
        reading: dict[int, int] = {}
        writing = -1
        if streams.terminal:
            variables = {"TERM": "xterm"} | variables
            reading[STDOUT], terminal = entry.open_terminal()
            its = [terminal] * 3
            # A second descriptor, because the one for reading is closed when the other side is closed.
            writing = os.dup(reading[STDOUT])
        else:
            if streams.stdin:
                its[STDIN], writing = os.pipe()
            for channel, on in ((STDOUT, streams.stdout), (STDERR, streams.stderr)):
                if on:
                    reading[channel], its[channel] = os.pipe()
        stdin, stdout, stderr = its
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, env=variables, stdin=stdin, stdout=stdout, stderr=stderr
            )
        except OSError:
            _close(*reading.values(), writing)
            raise
        finally:
            _close(*its)
        command = cls(process=process, terminal=writing if streams.terminal else None)
        for channel, descriptor in reading.items():
            await command._read(channel, descriptor)
        if writing >= 0:
            await command._write(writing)
        return command

    async def _read(self, channel: int, descriptor: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _UntilGone(reader), os.fdopen(descriptor, "rb", 0)
        )
        self._transports.append(transport)
        self.outputs[channel] = _parts(reader)

    async def receive(self, message: bytes) -> None:
        """Handle a message of the client: also the size of its terminal."""
        if message[0] != RESIZE:
            await super().receive(message)
        elif self.terminal is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError, struct.error):
                size = json.loads(message[1:])
                cells = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, cells)

    async def wait(self) -> int:
        """Return the exit code, 128 + n for signal n."""
        code = await self.process.wait()
        return SIGNALLED - code if code < 0 else code

    async def end(self) -> None:
        """Close the command's streams, and kill it if it does not end within _TIDY_SECONDS."""
        self.terminal = None
        await super().end()
        # On a real node nothing kills it, so a command that reads to the end of its input can still clean up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIDY_SECONDS):
                await self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


async def _parts(output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await output.read(CHUNK):
        yield data


async def _send(socket: web.WebSocketResponse, channel: int, output: AsyncIterator[bytes]) -> None:
    async for data in output:
        await socket.send_bytes(bytes([channel]) + data)


async def _receive(socket: web.WebSocketResponse, session: Session) -> None:
    """Handle the client's messages until it disconnects."""
    async for message in socket:
        if message.type == WSMsgType.BINARY and message.data:
            await session.receive(message.data)


async def _send_all(socket: web.WebSocketResponse, session: Session) -> None:
    await asyncio.gather(*(_send(socket, *each) for each in session.outputs.items()))
    await socket.send_bytes(bytes([STATUS]) + exit_status(await session.wait()))


async def serve(socket: web.WebSocketResponse, session: Session) -> None:
    """Connect the client and the program until the program has ended.

    If the client disconnects, a command ends. A container continues.
    """
    sending = asyncio.ensure_future(_send_all(socket, session))
    receiving = asyncio.ensure_future(_receive(socket, session))
    try:
        await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
    await socket.close()
