"""Probe containers with HTTP, TCP, gRPC and commands. `once` is one attempt, `repeat` the loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

Object = dict[str, Any]
Port = Callable[[int | str], int | None]
Run = Callable[[list[str], float], Awaitable[int]]


def insecure() -> ssl.SSLContext:
    """Return TLS without verification, as kubelets use for probes."""
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


async def http(probe: Object, ip: str, port: int) -> str:
    """Send a GET request. Return "" for a status of 200 to 399, otherwise the error."""
    host = probe.get("host") or ip
    tls = insecure() if probe.get("scheme", "HTTP") == "HTTPS" else None
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        headers = "".join(f"{h['name']}: {h['value']}\r\n" for h in probe.get("httpHeaders") or [])
        request = f"GET {probe.get('path', '/')} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        writer.write(f"{request}User-Agent: kube-probe\r\n{headers}\r\n".encode())
        await writer.drain()
        words = (await reader.readline()).split()
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
    code = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return "" if 200 <= code < 400 else f"HTTP probe failed with statuscode: {code}"


async def tcp(host: str, port: int) -> str:
    """Connect, and return "" on success."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def once(probe: Object, ip: str, port: Port, run: Run) -> str:
    """Make one attempt. Return "" on success, otherwise the event's message. A gRPC probe only connects."""
    timeout = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        code = await run(probe["exec"]["command"], timeout)
        return "" if code == 0 else f"command ended with exit code {code}"
    kind = next((kind for kind in ("httpGet", "tcpSocket", "grpc") if kind in probe), None)
    if kind is None:
        return ""
    target = probe[kind]
    number = port(target["port"])
    if number is None:
        return f"no container port is called {target['port']!r}"
    work = http(target, ip, number) if kind == "httpGet" else tcp(target.get("host") or ip, number)
    try:
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError:
        return f"no answer from {ip}:{number} within {timeout:g} s"
    except (OSError, ssl.SSLError, ValueError) as error:
        return f"{ip}:{number}: {error}"


async def repeat(
    probe: Object, attempt: Callable[[], Awaitable[str]], changed: Callable[[bool, str], Awaitable[bool]]
) -> None:
    """Probe with the probe's delays and thresholds until `changed` returns true.

    `changed` gets the result when enough consecutive attempts give another result, and again for each further failure.
    """
    await asyncio.sleep(float(probe.get("initialDelaySeconds", 0)))
    good, row, verdict = False, 0, False
    while True:
        message = await attempt()
        success = not message
        row = row + 1 if success == good else 1
        good = success
        threshold = int(probe.get("successThreshold", 1) if success else probe.get("failureThreshold", 3))
        if row >= threshold and (success != verdict or not success):
            verdict = success
            if await changed(verdict, message):
                return
        # At first the interval is short, because it determines how long a rollout takes.
        await asyncio.sleep(float(probe.get("periodSeconds", 10)) if verdict or row > 5 else 1.0)
