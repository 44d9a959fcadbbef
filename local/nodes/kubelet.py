"""The kubelets' HTTPS server: container logs, exec, attach and port-forward.

Only the API server may call it, which has checked what its own clients may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from local.cluster.pki import KUBELET_CLIENT
from local.nodes import logs, port_forward, remote
from local.nodes.api import epoch
from local.nodes.container import Container
from local.nodes.pod import Pod, Pods
from local.nodes.process import NotRunningError


def serving_tls(pki: Path) -> ssl.SSLContext:
    """Return TLS with the kubelets' certificate. Clients need a certificate of the cluster."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki / "kubelet.crt", pki / "kubelet.key")
    tls.load_verify_locations(pki / "ca.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    return tls


def log_request(query: dict[str, str], now: float) -> logs.Request:
    """Return the PodLogOptions of a request.

    Raises:
        ValueError: A number or time is malformed.
    """
    since = None
    if "sinceSeconds" in query:
        since = now - float(query["sinceSeconds"])
    elif "sinceTime" in query:
        since = epoch(query["sinceTime"])
    return logs.Request(
        follow=query.get("follow", "").lower() in ("true", "1"),
        tail=int(query["tailLines"]) if "tailLines" in query else None,
        since=since,
        timestamps=query.get("timestamps", "").lower() in ("true", "1"),
        limit=int(query["limitBytes"]) if "limitBytes" in query else None,
    )


def _http_error(kind: type[web.HTTPError], message: str) -> web.HTTPError:
    """Return an HTTP error whose body is a metav1.Status.

    kubectl parses plain text as YAML, and shows nothing of a text with a colon
    (k8s.io/apimachinery@v0.35.4 pkg/util/httpstream/spdy/roundtripper.go).
    """
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    text = json.dumps(status | {"code": kind.status_code})
    return kind(text=text, content_type="application/json")


@web.middleware
async def authorize(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse clients other than the API server.

    A kubelet on EKS asks the API server what a client may do (TokenReview, SubjectAccessReview). The API server has
    all rights there, and it is the only client of the local nodes.
    """
    certificate = request.get_extra_info("peercert") or {}
    names = dict(pair for attributes in certificate.get("subject", ()) for pair in attributes)
    if (user := names.get("commonName")) != KUBELET_CLIENT:
        raise _http_error(
            web.HTTPForbidden,
            f"user {user!r}: is not the API server. Use `kubectl logs`, `exec` or `port-forward`",
        )
    return await handler(request)


class _TakenConnection(asyncio.StreamReaderProtocol):
    """The streams of a connection that is no HTTP connection any more.

    The HTTP server still counts the connection, so it must know when the connection ends.
    """

    def __init__(self, reader: asyncio.StreamReader, request: web.Request) -> None:
        super().__init__(reader, loop=asyncio.get_running_loop())
        self._http = request.protocol

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._http.connection_lost(error)


async def take_connection(request: web.Request) -> port_forward.Connection:
    """Return the connection of a request, which then is no HTTP connection any more.

    Raises:
        ConnectionResetError: The client has disconnected.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has disconnected")
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = _TakenConnection(reader, request)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Kubelet:
    """Serves the streams of the pods of all nodes on one port of the loopback address.

    `state` is the directory of the port file, `pki` has the cluster's certificates.
    """

    def __init__(self, pods: Pods, state: Path, pki: Path) -> None:
        self.pods = pods
        self.state = state
        self.pki = pki
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen, on the previous port if it is free. Return the port."""
        app = web.Application(middlewares=[authorize])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_route("*", "/{verb:exec|attach}/{namespace}/{pod}/{container}", self._stream)
        app.router.add_route("*", "/portForward/{namespace}/{pod}", self._port_forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        tls = serving_tls(self.pki)
        port_file = self.state / "kubelet.port"
        before = int(port_file.read_text()) if port_file.exists() else 0
        try:
            await web.TCPSite(self._runner, "127.0.0.1", before, ssl_context=tls).start()
        except OSError:
            await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls).start()
        port = int(self._runner.addresses[0][1])
        port_file.write_text(str(port))
        return port

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _pod(self, request: web.Request) -> Pod:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        pod = self.pods.find(namespace, name)
        if pod is None:
            raise _http_error(web.HTTPNotFound, f"pod {namespace}/{name}: not on these nodes")
        return pod

    def _container(self, request: web.Request) -> Container:
        pod, name = self._pod(request), request.match_info["container"]
        for container in pod.every:
            if container.name == name:
                return container
        raise _http_error(web.HTTPNotFound, f"pod {pod.label}: no container {name!r}")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        query = dict(request.query)
        try:
            wanted = log_request(query, time.time())
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        clock, running = container.clock, container.running
        if query.get("previous", "").lower() in ("true", "1"):
            clock = logs.Clock(container.log_path(container.state.restarts - 1))
            if not clock.path.exists():
                raise web.HTTPBadRequest(text=f"previous terminated container {container.name!r} not found\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            if container.simulated:
                await response.write(b"(simulated: this image has no program on the local nodes)\n")
            else:
                async for data in logs.read(clock, wanted, running):
                    await response.write(data)
            await response.write_eof()
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Serve exec or attach on a WebSocket."""
        container, verb = self._container(request), request.match_info["verb"]
        socket = web.WebSocketResponse(protocols=remote.PROTOCOLS, compress=False, max_msg_size=0)
        try:
            streams = remote.parse_request(request.query, verb)
            entry = await container.entry()
            # This check is last: kubectl repeats a refused request with SPDY, and shows only that answer.
            offer = socket.can_prepare(request)
            if not offer.ok or offer.protocol is None:
                raise ValueError(
                    f"{verb}: send a WebSocket of {' or '.join(remote.PROTOCOLS)}, as kubectl does since 1.31; the "
                    "local nodes do not speak SPDY"
                )
            if verb == "exec":
                session: remote.Session = await remote.Command.start(entry, streams)
            else:
                log = logs.read(container.clock, logs.Request(follow=True, tail=0), container.running)
                session = await remote.Session.attach(log, container.open_stdin() if streams.stdin else None)
        except ValueError as error:
            raise _http_error(web.HTTPBadRequest, str(error)) from error
        except NotRunningError as error:
            raise _http_error(web.HTTPConflict, f"container {container.name!r}: {error}") from error
        except OSError as error:
            raise _http_error(
                web.HTTPInternalServerError, f"container {container.name!r}: {error}"
            ) from error
        try:
            await socket.prepare(request)
            await remote.serve(socket, session)
        finally:
            await session.end()
        return socket

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        pod = self._pod(request)
        if pod.simulated:
            raise _http_error(web.HTTPConflict, f"pod {pod.label}: its images have no programs here")
        if request.headers.get("Upgrade", "").upper() != "SPDY/3.1":
            raise _http_error(
                web.HTTPBadRequest, "port-forward: send an upgrade to SPDY/3.1, as the API server does"
            )
        client = await take_connection(request)
        client[1].write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            b"X-Stream-Protocol-Version: " + port_forward.PROTOCOL.encode() + b"\r\n\r\n"
        )
        await port_forward.serve(client, pod.connect, f"{pod.label}, uid {pod.uid}")
        return web.Response()  # not sent, because the connection is closed
