from __future__ import annotations

import asyncio
from typing import Any

import pytest

from local.nodes import container

pytestmark = pytest.mark.unit


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
    ("status", "good"), [("200 OK", True), ("302 Found", True), ("404 No", False), ("", False)]
)
def test_http_probe_status_200_to_399_succeeds(status: str, good: bool) -> None:
    answer = f"HTTP/1.1 {status}\r\n\r\n".encode()
    probe = {"httpGet": {"path": "/ready", "port": "http", "httpHeaders": [{"name": "X", "value": "y"}]}}
    verdict, asked = asyncio.run(probe_server(answer, probe))
    assert (verdict == "") is good
    assert asked.startswith(b"GET /ready HTTP/1.1\r\n")
    assert b"X: y\r\n" in asked


def test_http_probe_path_without_slash_is_that_of_the_root() -> None:
    probe = {"httpGet": {"path": "ready", "port": 80}}
    verdict, asked = asyncio.run(probe_server(b"HTTP/1.1 200 OK\r\n\r\n", probe))
    assert (verdict, asked.startswith(b"GET /ready HTTP/1.1\r\n")) == ("", True)


def test_probe_closed_port_failure_has_its_address() -> None:
    probe = {"tcpSocket": {"port": 1}}
    verdict = asyncio.run(container.probe_once(probe, "127.0.0.1", lambda _: 1, no_command))
    assert verdict.startswith("127.0.0.1:1: ")


def test_probe_undeclared_port_name_is_named() -> None:
    verdict = asyncio.run(
        container.probe_once({"httpGet": {"port": "x"}}, "127.0.0.1", lambda _: None, no_command)
    )
    assert verdict == "no container port is called 'x'"


def test_exec_probe_result_is_its_exit_code() -> None:
    async def run(argv: list[str], timeout: float) -> int:
        assert (argv, timeout) == (["test"], 7.0)
        return 3

    probe = {"exec": {"command": ["test"]}, "timeoutSeconds": 7}
    assert (
        asyncio.run(container.probe_once(probe, "127.0.0.1", lambda _: 1, run))
        == "command ended with exit code 3"
    )


def verdicts(results: list[bool], monkeypatch: pytest.MonkeyPatch, **probe: int) -> list[bool]:
    """What a row of attempts leads to."""
    found: list[bool] = []
    left = list(results)

    async def no_sleep(_seconds: float) -> None:
        return None

    async def attempt() -> str:
        return "" if left.pop(0) else "bad"

    async def changed(good: bool, _message: str) -> bool:
        found.append(good)
        return not left

    async def go() -> None:
        try:
            await container.repeat_probe(probe, attempt, changed)
        except IndexError:
            return

    monkeypatch.setattr("local.nodes.container.asyncio.sleep", no_sleep)
    asyncio.run(go())
    return found


def test_probe_three_failures_in_a_row_make_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts([False, True, False, False, True, False, False, False], monkeypatch) == [True, False]


@pytest.mark.parametrize("is_readiness", [False, True])
def test_probe_success_ends_the_initial_delay_of_readiness(
    is_readiness: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def attempt() -> str:
        return ""

    async def changed(good: bool, _message: str) -> bool:
        return good

    monkeypatch.setattr("local.nodes.container.asyncio.sleep", sleep)
    probe = {"initialDelaySeconds": 30}
    asyncio.run(container.repeat_probe(probe, attempt, changed, is_readiness=is_readiness))
    assert slept == ([] if is_readiness else [30.0])


def test_probe_thresholds_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [True, True, False]
    assert verdicts(results, monkeypatch, successThreshold=2, failureThreshold=1) == [True, False]
