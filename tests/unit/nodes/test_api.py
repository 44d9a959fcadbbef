"""Requests and watches of the Kubernetes API from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.nodes.api import Api, ApiError, ApiUnavailable, Informer, epoch, timestamp
from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.nodes.event_loop import in_event_loop

PODS = "/api/v1/pods"
OWN = "/api/v1/namespaces/n/pods"


@pytest.fixture
def server() -> Iterator[FakeApi]:
    with serving(FakeApi()) as served:
        yield served


@pytest.fixture
def kubeconfig(server: FakeApi, tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    file.write_text(json.dumps(document))
    return file


def item(uid: str, name: str = "p") -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid}}


async def until(holds: Any) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


@in_event_loop
async def test_informer_reports_changes_in_the_event_loop(server: FakeApi, kubeconfig: Path) -> None:
    server.put(f"{OWN}/p", item("u1"))
    changes: list[tuple[str, str]] = []

    async with Api(kubeconfig) as api:
        pods = Informer(api, PODS, lambda what, found: changes.append((what, found["metadata"]["uid"])))
        watching = asyncio.create_task(pods.run())
        async with asyncio.timeout(30):
            await pods.synced.wait()
        assert list(pods.objects) == [("n", "p")]
        await api.create(OWN, item("u2", "q"))
        await api.delete(f"{OWN}/p", {"preconditions": {"uid": "u1"}})
        await until(lambda: len(changes) == 3)
        assert list(pods.objects) == [("n", "q")]
        watching.cancel()
        await asyncio.wait([watching])
    assert changes == [("set", "u1"), ("set", "u2"), ("gone", "u1")]


def test_informer_unseen_replacement_is_gone_then_set(kubeconfig: Path) -> None:
    changes: list[tuple[str, str]] = []
    pods = Informer(
        Api(kubeconfig), PODS, lambda what, found: changes.append((what, found["metadata"]["uid"]))
    )
    for before, after in ((None, "u1"), ("u1", "u1"), ("u1", "u2"), ("u2", None)):
        pods.apply(before and item(before), after and item(after))
    assert changes == [("set", "u1"), ("set", "u1"), ("gone", "u1"), ("set", "u2"), ("gone", "u2")]
    assert pods.objects == {}


@in_event_loop
async def test_request_failure_is_not_retried(server: FakeApi, kubeconfig: Path) -> None:
    async with Api(kubeconfig) as api:
        with pytest.raises(ApiError, match="404"):
            await api.get(f"{OWN}/nobody")
        server.faults = [(503, {}, b"busy")]
        with pytest.raises(ApiUnavailable, match="503"):
            await api.get(OWN)


@in_event_loop
async def test_cancelled_request_ends_before_its_caller(server: FakeApi, kubeconfig: Path) -> None:
    """Otherwise a node could be created after its deletion."""
    ended: list[str] = []

    def slowly(_method: str, path: str) -> None:
        time.sleep(0.2)
        ended.append(path)

    server.on_request = slowly

    async with Api(kubeconfig) as api:
        creating = asyncio.create_task(api.create(OWN, item("u1")))
        await until(lambda: server.requests)
        creating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await creating
        assert ended == [OWN]


def test_epoch_of_timestamp_is_the_same_time() -> None:
    assert epoch(timestamp(1_800_000_000.0)) == 1_800_000_000.0
