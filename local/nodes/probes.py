"""Probes of containers: HTTP, TCP and commands."""

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
    """TLS without verification, as kubelets probe."""
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


async def http(probe: Object, ip: str, port: int) -> str:
    """GET; "" for a status of 200 to 399, else what went wrong."""
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
    """Connect; "" when it succeeds."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def once(probe: Object, ip: str, port: Port, run: Run) -> str:
    """One attempt: "" for success, else the failure as an event shows it. A gRPC probe only connects."""
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
    """Probe for ever, with the probe's delays and thresholds; `changed` returns True to stop.

    It is called with the verdict whenever enough attempts in a row agree on another one, and with each
    failing verdict again.
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
        # The first seconds decide how long a roll-out takes: a program that is not up yet is asked again soon.
        await asyncio.sleep(float(probe.get("periodSeconds", 10)) if verdict or row > 5 else 1.0)
