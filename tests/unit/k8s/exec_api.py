"""The local machines' own side of `exec`, behind the API server's path."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from kubernetes import client

from local.nodes import remote
from local.nodes.process import Entry
from trainyard.k8s.client import Client, RetryPolicy, api_client


class Here(Entry):
    """Enters nothing."""

    def command(self, argv: Sequence[str], terminal: bool = False) -> list[str]:
        return list(argv)


class Pods:
    """An API server that knows of nothing but exec, in this directory; `cut` breaks after so many messages,
    `before` are words before each command."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refuse = 0
        self.tells = True
        self.silent = False
        self.waiting = threading.Event()  # for an answer, while it is silent
        self.cut = -1
        self.before: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.refuse:
            return web.json_response(
                {"reason": "Forbidden", "message": "no exec for you"} if self.tells else None,
                status=self.refuse,
            )
        if self.silent:
            self.waiting.set()
            await asyncio.sleep(600)
        query = request.query.copy()
        for ours, its in (("stdin", "input"), ("stdout", "output"), ("stderr", "error")):
            if query.get(ours) in ("true", "True"):
                query.add(its, "1")
        streams = remote.parse_request(query, "exec")
        socket = web.WebSocketResponse(
            timeout=0.1, protocols=remote.PROTOCOLS, compress=False, max_msg_size=0
        )
        if self.cut >= 0:
            await socket.prepare(request)
            for _ in range(self.cut):
                await socket.receive()
            assert request.transport
            request.transport.abort()
            return socket
        words = ("env", "-C", str(self.root), *self.before, *streams.command)
        entry = Here(os.getpid(), dict(os.environ))
        command = await remote.Command.start(entry, replace(streams, command=words))
        try:
            await socket.prepare(request)
            await remote.serve(socket, command)
        finally:
            await command.end()
        return socket


@contextmanager
def serving_pods(directory: Path) -> Iterator[Pods]:
    """One that answers meanwhile."""
    served, ready, loop = Pods(directory), threading.Event(), asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/exec", served.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.url = site.name
        port = runner.addresses[0][1]
        served.url = f"http://127.0.0.1:{port}"
        return runner

    def work() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield served
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)


def rest(pods: Pods) -> Client:
    settings = client.Configuration()
    settings.host = pods.url
    return Client(api_client(settings), RetryPolicy(timeout=0.5))
