"""Nodes follow the EC2 instances, also while the API server is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from local.nodes import context, node
from local.nodes.api import ApiError
from local.nodes.context import Tasks
from local.nodes.registration import NODES, Registration
from tests.unit.nodes.event_loop import in_event_loop

INSTANCE = {
    "instanceId": "i-1",
    "instanceType": "m6i.large",
    "privateDns": "node-1",
    "zone": "us-west-2a",
    "state": "running",
    "launchTime": 0,
    "vcpus": 2,
    "memoryMiB": 8192,
}


class FakeApi:
    """Knows Nodes by path. `away` is how many deletions meet no answer; `stuck` never answers a creation.

    `reports` are the statuses that were patched, the newest last, and `shown` the conditions before the first.
    """

    def __init__(self, away: int = 0, stuck: bool = False, shown: list[dict[str, Any]] | None = None) -> None:
        self.nodes: set[str] = set()
        self.reports: list[dict[str, Any]] = []
        self.away = away
        self.shown = shown or []
        self.stuck = stuck

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == NODES:
            self.nodes.add(body["metadata"]["name"])
            if self.stuck:
                await asyncio.Event().wait()
        return {}

    async def patch(self, path: str, body: dict[str, Any], *_: Any) -> dict[str, Any]:
        if path.endswith("/status"):
            self.reports.append(body["status"])
        return {}

    async def get(self, path: str) -> dict[str, Any]:
        conditions = self.reports[-1]["conditions"] if self.reports else self.shown
        return {"metadata": {"name": path.rsplit("/", 1)[1]}, "status": {"conditions": conditions}}

    async def delete(self, path: str) -> dict[str, Any]:
        if self.away:
            self.away -= 1
            raise OSError("connection refused")
        name = path.rsplit("/", 1)[1]
        if name not in self.nodes:
            raise ApiError("", "", 404, "NotFound", name)
        self.nodes.remove(name)
        return {}


async def joined(api: FakeApi, plugins: set[str] | None = None, instance: Any = INSTANCE) -> Registration:
    """A registration with one instance whose Node the API server has. `plugins` may change: those that run on it."""
    settings: Any = SimpleNamespace(boot_seconds=0.0, device_seconds=0.0, region="us-west-2", cluster="c")

    async def gone(_: str) -> None: ...

    def running(_: str) -> frozenset[str]:
        return frozenset(plugins or ())

    registration = Registration(settings, api, Tasks(), 1, lambda *_: None, gone, running)  # type: ignore[arg-type]
    await registration._apply([instance])
    while not api.nodes:
        await asyncio.sleep(0)
    return registration


@in_event_loop
async def test_node_deletion_is_retried_after_an_api_failure() -> None:
    api = FakeApi(away=1)
    registration = await joined(api)
    with pytest.raises(OSError, match="refused"):
        await registration._apply([])
    await registration._apply([])
    assert api.nodes == set()
    assert registration.by_id == {}


@in_event_loop
async def test_node_is_registered_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "RETRY_SECONDS", 0.0)
    build, errors = node.build, [KeyError("zone")]

    def fail_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return build(*arguments)

    monkeypatch.setattr(node, "build", fail_once)

    api = FakeApi()
    await joined(api)
    assert api.nodes == {"node-1"}


@in_event_loop
async def test_node_in_creation_is_deleted_with_its_instance() -> None:
    api = FakeApi(stuck=True)
    registration = await joined(api)
    await registration._apply([])
    assert api.nodes == set()


GPUS = {**INSTANCE, "gpus": 4}


async def wait_for_report(api: FakeApi, count: int) -> dict[str, Any]:
    """The newest report, as soon as there are so many."""
    while len(api.reports) < count:
        await asyncio.sleep(0)
    return api.reports[-1]


@in_event_loop
async def test_node_gpus_follow_their_plugin() -> None:
    api, plugins = FakeApi(), set[str]()
    registration = await joined(api, plugins, GPUS)
    assert "nvidia.com/gpu" not in (await wait_for_report(api, 1))["capacity"]
    plugins.add("nvidia.com/gpu")
    registration.plugin_seen("node-1")
    assert (await wait_for_report(api, 2))["allocatable"]["nvidia.com/gpu"] == "4"
    plugins.clear()
    registration.plugin_seen("node-1")
    assert (await wait_for_report(api, 3))["allocatable"]["nvidia.com/gpu"] == "0"
    assert api.reports[-1]["capacity"]["nvidia.com/gpu"] == "4"
    await registration._apply([])


@in_event_loop
async def test_node_plugin_that_ends_at_registration_adds_no_device() -> None:
    api, plugins = FakeApi(), set[str]()
    registration = await joined(api, plugins, GPUS)
    await wait_for_report(api, 1)
    plugins.add("nvidia.com/gpu")
    registration.plugin_seen("node-1")
    await asyncio.sleep(0)
    plugins.clear()
    registration.plugin_seen("node-1")
    report = await wait_for_report(api, 2)
    assert report["allocatable"].get("nvidia.com/gpu", "0") == "0"
    await registration._apply([])


@in_event_loop
async def test_node_report_keeps_transition_times() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-31T12:00:00Z"}
    api = FakeApi(shown=[ready])
    registration = await joined(api)
    for count in (1, 2):
        report = await wait_for_report(api, count)
        found = {each["type"]: each["lastTransitionTime"] for each in report["conditions"]}
        assert found["Ready"] == ready["lastTransitionTime"]
        registration.plugin_seen("node-1")
    assert found["DiskPressure"] > ready["lastTransitionTime"]
    await registration._apply([])


@in_event_loop
async def test_node_condition_of_the_agent_is_reported() -> None:
    api = FakeApi()
    registration = await joined(api)
    await wait_for_report(api, 1)
    wrong = {"type": "KernelReady", "status": "False", "reason": "r", "message": "m", "since": 0.0}
    await registration._apply([{**INSTANCE, "conditions": [wrong]}])
    conditions = (await wait_for_report(api, 2))["conditions"]
    assert [each["status"] for each in conditions if each["type"] == "KernelReady"] == ["False"]
    await registration._apply([])
