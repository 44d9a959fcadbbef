from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from local.nodes import container


async def no_command(_argv: list[str], _timeout: float) -> int:
    raise AssertionError("not an exec probe")


async def probe_server(answer: bytes, probe: dict[str, Any]) -> tuple[str, bytes]:
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    verdict = await container.probe_once(probe, "127.0.0.1", lambda _: port, no_command)
    server.close()
    return verdict, asked


@pytest.mark.parametrize(
    ("path", "status", "good"),
    [
        ("/ready", "200 OK", True),
        ("ready", "200 OK", True),
        ("/ready", "302 Found", True),
        ("/ready", "404 No", False),
        ("/ready", "", False),
    ],
)
def test_http_probe_status_200_to_399_succeeds(path: str, status: str, good: bool) -> None:
    answer = f"HTTP/1.1 {status}\r\n\r\n".encode()
    probe = {"httpGet": {"path": path, "port": "http", "httpHeaders": [{"name": "X", "value": "y"}]}}
    verdict, asked = asyncio.run(probe_server(answer, probe))
    assert (verdict == "") is good
    assert asked.startswith(b"GET /ready HTTP/1.1\r\n")
    assert b"X: y\r\n" in asked


@pytest.mark.parametrize(
    ("port", "found", "verdict"), [(1, 1, "127.0.0.1:1: "), ("x", None, "no container port is called 'x'")]
)
def test_probe_failure_names_the_port(port: int | str, found: int | None, verdict: str) -> None:
    probe = {"tcpSocket": {"port": port}}
    said = asyncio.run(container.probe_once(probe, "127.0.0.1", lambda _: found, no_command))
    assert said.startswith(verdict)


def test_exec_probe_result_is_its_exit_code() -> None:
    async def run(argv: list[str], timeout: float) -> int:
        assert (argv, timeout) == (["test"], 7.0)
        return 3

    probe = {"exec": {"command": ["test"]}, "timeoutSeconds": 7}
    said = asyncio.run(container.probe_once(probe, "127.0.0.1", lambda _: 1, run))
    assert said == "command ended with exit code 3"


def verdicts(results: list[bool], monkeypatch: pytest.MonkeyPatch, **probe: int) -> list[bool]:
    """What a row of attempts leads to."""
    found: list[bool] = []
    left = list(results)

    async def no_sleep(_seconds: float) -> None:
        return None

    async def attempt() -> str:
        return "" if left.pop(0) else "bad"

    async def go() -> None:
        with contextlib.suppress(IndexError):  # no attempt is left
            async for good, _ in container.probe_results(probe, attempt, is_readiness=False):
                found.append(good)

    monkeypatch.setattr("local.nodes.container.asyncio.sleep", no_sleep)
    asyncio.run(go())
    return found


def test_probe_thresholds_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts([False, True, False, False, True, False, False, False], monkeypatch) == [True, False]
    results = [True, True, False]
    assert verdicts(results, monkeypatch, successThreshold=2, failureThreshold=1) == [True, False]


@pytest.mark.parametrize("is_readiness", [False, True])
def test_probe_success_ends_the_initial_delay_of_readiness(
    is_readiness: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def attempt() -> str:
        return ""

    async def first() -> tuple[bool, str]:
        return await anext(
            container.probe_results({"initialDelaySeconds": 30}, attempt, is_readiness=is_readiness)
        )

    monkeypatch.setattr("local.nodes.container.asyncio.sleep", sleep)
    assert asyncio.run(first()) == (True, "")
    assert slept == ([] if is_readiness else [30.0])
