"""Nodes follow the EC2 instances, also while the API server is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from local.machines.api import ApiError
from local.machines.context import Tasks
from local.machines.machines import NODES, Machines

pytestmark = pytest.mark.unit

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
    """Knows Nodes by path. `away` is how many deletions meet no answer; `stuck` never answers a creation."""

    def __init__(self, away: int = 0, stuck: bool = False) -> None:
        self.nodes: set[str] = set()
        self.away = away
        self.stuck = stuck

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == NODES:
            self.nodes.add(body["metadata"]["name"])
            if self.stuck:
                await asyncio.Event().wait()
        return {}

    async def patch(self, *_: Any) -> dict[str, Any]:
        return {}

    async def delete(self, path: str) -> dict[str, Any]:
        if self.away:
            self.away -= 1
            raise OSError("connection refused")
        name = path.rsplit("/", 1)[1]
        if name not in self.nodes:
            raise ApiError(404, "NotFound", name)
        self.nodes.remove(name)
        return {}


async def joined(api: FakeApi) -> Machines:
    """Machines with one instance whose Node the API server has."""
    settings: Any = SimpleNamespace(boot_seconds=0.0, device_seconds=0.0, region="us-west-2", cluster="c")

    async def gone(_: str) -> None: ...

    machines = Machines(settings, api, Tasks(), 1, lambda *_: None, gone)  # type: ignore[arg-type]
    await machines._apply([INSTANCE])
    while not api.nodes:
        await asyncio.sleep(0)
    return machines


def test_a_node_goes_with_its_instance_once_the_api_server_answers_again() -> None:
    async def story() -> None:
        api = FakeApi(away=1)
        machines = await joined(api)
        with pytest.raises(OSError, match="refused"):
            await machines._apply([])
        await machines._apply([])
        assert api.nodes == set()
        assert machines.by_id == {}

    asyncio.run(story())


def test_a_node_whose_creation_was_not_answered_yet_goes_with_its_instance() -> None:
    async def story() -> None:
        api = FakeApi(stuck=True)
        machines = await joined(api)
        await machines._apply([])
        assert api.nodes == set()

    asyncio.run(story())
