"""Loops of local/nodes go on after a failure."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from local.nodes import context, pod
from local.nodes.context import Tasks
from local.nodes.pod import Pods
from tests.unit.nodes.event_loop import in_event_loop


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(pod, "SETTLE_SECONDS", 0.0)


@in_event_loop
async def test_loop_that_fails_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [OSError("full"), OSError("full"), KeyError("x")]

    async def loop() -> None:
        if errors:
            raise errors.pop(0)

    with caplog.at_level(logging.ERROR):
        await Tasks().start_loop(loop, "names")
    assert [record.getMessage() for record in caplog.records] == [
        "names failed and is started again: OSError: full",
        "names failed and is started again: KeyError: 'x'",
    ]


@in_event_loop
async def test_loop_can_be_cancelled() -> None:
    task = Tasks().start_loop(asyncio.Event().wait, "names")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@in_event_loop
async def test_hosts_file_is_written_again_after_a_full_disk() -> None:
    written: list[str] = []
    errors = [OSError(28, "No space left on device")]

    def write_hosts(text: str) -> None:
        if errors:
            raise errors.pop()
        written.append(text)

    pods = Pods(lambda: None)
    nothing = SimpleNamespace(objects={})
    pods.context = SimpleNamespace(services=nothing, pods=nothing)  # type: ignore[assignment]
    each: Any = SimpleNamespace(simulated=False, namespace="n", own_names=[], ip="", write_hosts=write_hosts)
    pods.by_uid["u"] = each
    pods.service_changed("set", {})
    task = Tasks().start_loop(pods.keep_names, "names")
    while not written:
        await asyncio.sleep(0.001)
    task.cancel()
    assert errors == []
