"""Replace kube-proxy: listen on each Service's address and forward connections to ready pods. See `Proxies`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from local.nodes import names
from local.nodes.api import Object
from local.nodes.context import HOST_IP, Context

log = logging.getLogger(__name__)

Target = tuple[str, int]
BUFFER = 1 << 16


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end, and forward the end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(BUFFER):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target) -> None:
    """Connect a client to a target until both sides have ended. If the target refuses, reset the client."""
    try:
        far_reader, far_writer = await asyncio.open_connection(*target)
    except OSError as error:
        log.debug("no connection to %s:%d: %s", *target, error)
        writer.transport.abort()
        return
    try:
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    finally:
        for each in (writer, far_writer):
            each.close()


class Proxies:
    """One listener per Service address and port with a ready pod.

    Without a ready pod there is no listener. So a client gets "connection refused", as with kube-proxy.
    """

    def __init__(self) -> None:
        self.context: Context | None = None
        self.targets: dict[Target, list[Target]] = {}
        self._servers: dict[Target, asyncio.Server] = {}
        self._wanted = asyncio.Event()

    def wanted(self) -> dict[Target, list[Target]]:
        """Return the addresses to listen on, each with its targets."""
        if self.context is None:
            return {}
        context = self.context
        pods = list(context.pods.objects.values())
        found: dict[Target, list[Target]] = {(context.settings.service_ip, 443): [self._api()]}
        for service in context.services.objects.values():
            address = service["spec"].get("clusterIP", "None")
            if address in ("None", "", context.settings.service_ip):
                continue
            for port in service["spec"].get("ports") or []:
                behind = self._behind(service, port, pods)
                if port.get("protocol", "TCP") == "TCP" and behind:
                    found[address, port["port"]] = behind
        return found

    def _api(self) -> Target:
        port = self.context.settings.api_port if self.context else 0
        return HOST_IP, port

    def _behind(self, service: Object, port: Object, pods: list[Object]) -> list[Target]:
        return names.targets(service, port, pods, self.context.moved_ports if self.context else {})

    def settle(self) -> None:
        """Let `run` update the listeners."""
        self._wanted.set()

    async def run(self) -> None:
        """Open and close listeners as Services and pods change."""
        while True:
            self._wanted.clear()
            self.targets = self.wanted()
            for address in self._servers.keys() - self.targets.keys():
                self._servers.pop(address).close()
            for address in self.targets.keys() - self._servers.keys():
                await self._listen(address)
            await self._wanted.wait()

    async def _listen(self, address: Target) -> None:
        try:
            self._servers[address] = await asyncio.start_server(self._client(address), *address)
        except OSError as error:
            log.error("service address %s:%d: cannot listen: %s", *address, error)

    def _client(
        self, address: Target
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            behind = self.targets.get(address)
            if behind:
                await join(reader, writer, random.choice(behind))  # noqa: S311 balancing, no secret
            else:
                writer.transport.abort()

        return serve

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.close()
