"""A pod's life ends whatever fails meanwhile: its start, the API server, or what is done for it."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local.nodes import context, pod, status
from local.nodes.api import ApiError, ApiUnavailable
from local.nodes.container import Container
from local.nodes.context import Tasks
from local.nodes.images import Images
from local.nodes.network import Addresses
from local.nodes.pod import Pod
from local.nodes.process import Ended
from local.nodes.volumes import PodVolumes
from tests.unit.nodes.event_loop import in_event_loop

ACCOUNT = "123456789012"
NOWHERE = f"{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com/never:built"
PATH = "/api/v1/namespaces/n/pods/p"


class FakeApi:
    """Knows one pod's uid and its statuses. Each refusal is raised once by the next request of that kind."""

    def __init__(self) -> None:
        self.uid = "u1"
        self.statuses: list[dict[str, Any]] = []
        self.refusals: dict[str, list[Exception]] = {"patch": [], "delete": [], "get": []}

    def _refuse(self, kind: str) -> None:
        if self.refusals[kind]:
            raise self.refusals[kind].pop(0)

    def _find(self, uid: str) -> None:
        if not self.uid:
            raise ApiError("", "", 404, "NotFound", "p")
        if uid != self.uid:
            raise ApiError("", "", 409, "Conflict", "the UID in the precondition is another")

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        self._refuse("patch")
        self._find(body["metadata"]["uid"])
        self.statuses.append(body["status"])

    async def delete(self, path: str, body: dict[str, Any]) -> None:
        self._refuse("delete")
        self._find(body["preconditions"]["uid"])
        assert (path, body["gracePeriodSeconds"]) == (PATH, 0)
        self.uid = ""

    async def get(self, path: str) -> dict[str, Any]:
        self._refuse("get")
        if path == PATH:
            self._find(self.uid)
        return {"metadata": {"uid": self.uid}}


class Reported(Pod):
    """A pod that appends its events to a list."""

    def event(self, kind: str, reason: str, message: str) -> None:
        events: list[tuple[str, str]] = vars(self.context)["events"]
        events.append((reason, message))


class World:
    """One pod on a machine, and what it said in events."""

    def __init__(self, directory: Path, spec: dict[str, Any]) -> None:
        self.api = FakeApi()
        self.events: list[tuple[str, str]] = []
        nothing = SimpleNamespace(objects={})
        self.context: Any = SimpleNamespace(
            settings=SimpleNamespace(pods=directory / "pods", pod_logs=directory / "logs"),
            api=self.api,
            images=Images(directory / "images.json", directory, directory, ACCOUNT),
            addresses=Addresses(IPv4Network("127.96.0.0/24")),
            tasks=Tasks(),
            moved_ports={},
            config_maps=nothing,
            secrets=nothing,
            allocatable={},
            services=nothing,
            pods=nothing,
            events=self.events,
        )
        metadata = {"uid": "u1", "namespace": "n", "name": "p"}
        self.item: dict[str, Any] = {"metadata": metadata, "spec": {"nodeName": "node-1"} | spec}
        self.pod = Reported(self.context, self.item)

    async def deleted(self, life: asyncio.Task[None]) -> None:
        """Delete it in the API, and wait until it is removed."""
        deletion = {"deletionTimestamp": "2026-01-31T12:00:00Z", "deletionGracePeriodSeconds": 1}
        self.pod.update(self.item | {"metadata": self.item["metadata"] | deletion})
        await self.removed(life)

    async def removed(self, life: asyncio.Task[None]) -> None:
        """Once its life is over nothing of it is left."""
        await life
        assert self.context.addresses.taken == set()
        assert not self.pod.directory.exists()


def begin(directory: Path, **spec: Any) -> tuple[World, asyncio.Task[None]]:
    """A pod, and its life in the background."""
    world = World(directory, {"containers": [container("main")]} | spec)
    return world, asyncio.create_task(world.pod.run())


def container(name: str, image: str = "simulated", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, **more}


def sidecar(image: str = "simulated") -> dict[str, Any]:
    return container("side", image, restartPolicy="Always")


async def until(holds: Callable[[], Any]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def fail_first(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *errors: Exception) -> None:
    """Let the first calls of a method raise these errors."""
    real, left = getattr(owner, name), list(errors)

    async def call(self: Any, *arguments: Any) -> Any:
        if left:
            raise left.pop()
        return await real(self, *arguments)

    monkeypatch.setattr(owner, name, call)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pod, context):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(status, "BACK_OFF_SECONDS", 0.01)


# Deletion ------------------------------------------------------------------------------------------------------------


@in_event_loop
async def test_pod_with_unstarted_sidecar_is_removed(tmp_path: Path) -> None:
    world, life = begin(tmp_path, initContainers=[sidecar(NOWHERE)])
    await until(lambda: world.pod.init[0].state.reason == "ErrImagePull")
    await world.deleted(life)
    assert world.api.uid == ""


@in_event_loop
async def test_sidecar_failed_start_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_first(monkeypatch, Container, "_start", KeyError("unforeseen"), KeyError("unforeseen"))

    world, life = begin(tmp_path, initContainers=[sidecar()])
    await until(lambda: world.pod.containers[0].state.ready)
    assert world.pod.init[0].state.stage == "running"
    await world.deleted(life)
    message = "error syncing pod, container side: KeyError: 'unforeseen'"
    assert world.events.count(("FailedSync", message)) == 1


@in_event_loop
async def test_pod_removal_does_not_wait_for_endless_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Container) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(Container, "_live", fail)

    world, life = begin(tmp_path, initContainers=[sidecar()])
    await until(lambda: world.events)
    await world.deleted(life)


@in_event_loop
async def test_sidecars_of_deleted_pod_stop_last_in_reverse_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sidecar of a worker uploads the last lines of its log after the worker has ended."""
    steps: list[str] = []

    async def stop(self: Container, grace: float) -> None:
        steps.append(f"{self.name} stops")
        await asyncio.sleep(0.01)
        steps.append(f"{self.name} has ended")

    monkeypatch.setattr(Container, "stop", stop)

    second = container("second", restartPolicy="Always")
    containers = [container("main"), container("other")]
    world = World(tmp_path, {"containers": containers, "initContainers": [sidecar(), second]})
    world.pod.stop(5.0)
    await asyncio.gather(*world.pod._stops)
    assert sorted(steps[:2]) == ["main stops", "other stops"]
    assert steps[4:] == ["second stops", "second has ended", "side stops", "side has ended"]


@in_event_loop
async def test_pod_failed_stop_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_first(monkeypatch, Container, "stop", OSError(errno.EMFILE, "too many open files"))

    world, life = begin(tmp_path)
    await until(lambda: world.pod.containers[0].state.ready)
    await world.deleted(life)


# Failures while it lives ---------------------------------------------------------------------------------------------


@in_event_loop
async def test_pod_failed_preparation_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_first(monkeypatch, PodVolumes, "prepare", KeyError("unforeseen"))

    world, life = begin(tmp_path, containers=[container("main", NOWHERE)])
    await until(lambda: world.pod.containers[0].state.reason == "ErrImagePull")
    await world.deleted(life)
    assert ("FailedSync", "error syncing pod, containers: KeyError: 'unforeseen'") in world.events


@in_event_loop
async def test_pod_without_address_waits_for_one(tmp_path: Path) -> None:
    world, life = begin(tmp_path)
    addresses = world.context.addresses
    others = {str(each) for each in addresses.network}
    addresses.taken = set(others)
    await until(lambda: world.events)
    assert "no free pod address" in world.events[0][1]
    addresses.taken.clear()
    await until(lambda: world.pod.containers[0].state.ready)
    await world.deleted(life)


@in_event_loop
async def test_restarted_container_ends_readers_of_its_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl logs -f` and `attach` follow one run, and look only now and then whether it has ended."""
    ends = [asyncio.Event(), asyncio.Event()]

    async def start(self: Container) -> bool:
        async def wait() -> Ended:
            await ends[self.state.restarts].wait()
            return Ended(1, 1.0)

        self.process = SimpleNamespace(wait=wait)  # type: ignore[assignment]
        self.state.run(1.0)
        return True

    monkeypatch.setattr(Container, "_start", start)

    world, life = begin(tmp_path)
    main = world.pod.containers[0]
    await until(lambda: main.running.is_set())
    first = main.running
    ends[0].set()
    await until(lambda: main.state.restarts == 1 and main.running.is_set())
    assert not first.is_set()
    monkeypatch.setattr(Container, "stop", lambda self, grace: asyncio.sleep(0))
    ends[1].set()
    await world.deleted(life)


def test_probe_that_cannot_start_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def entry(_: Container) -> Any:
        raise OSError(errno.ENOMEM, "cannot allocate memory")

    monkeypatch.setattr(Container, "entry", entry)
    world = World(tmp_path, {"containers": [container("main")]})
    assert asyncio.run(world.pod.containers[0].execute(["true"], 1.0)) == 1


def test_pod_ports_are_those_of_the_earlier_process(tmp_path: Path) -> None:
    world = World(tmp_path, {"containers": [container("main")]})
    world.context.moved_ports["u1"] = {8080: 40001}
    world.pod.save_ports()
    world.context.moved_ports.clear()
    Pod(world.context, world.item)  # as the next process does
    assert world.context.moved_ports == {"u1": {8080: 40001}}


@in_event_loop
async def test_pod_sleep_timeout_does_not_hide_the_stop(tmp_path: Path) -> None:
    site = World(tmp_path, {"containers": [container("main")]}).pod
    waiting = asyncio.create_task(site.sleep(0.01))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.011, site.stopping.set)
    time.sleep(0.05)  # so that both are due in one round of the loop
    assert await waiting


# What the API server says --------------------------------------------------------------------------------------------

BUSY = ApiUnavailable("500 InternalError: etcdserver: request timed out")


@in_event_loop
async def test_pod_end_is_reported_again_after_an_api_failure(tmp_path: Path) -> None:
    world, life = begin(tmp_path)
    conflict = ApiError("", "", 409, "Conflict", "the object has been modified")
    world.api.refusals["patch"] = [BUSY, BUSY, conflict]
    await world.deleted(life)
    assert [each["phase"] for each in world.api.statuses][-1:] == ["Failed"]


@in_event_loop
async def test_pod_refused_status_is_not_repeated(tmp_path: Path) -> None:
    world, life = begin(tmp_path)
    world.api.refusals["patch"] = [ApiError("", "", 422, "Invalid", "wrong")] * 10_000
    await world.deleted(life)


@pytest.mark.parametrize(
    ("refusal", "lookup"),
    [
        (BUSY, []),
        (ApiError("", "", 403, "Forbidden", "a webhook says no"), []),
        (OSError("connection refused"), []),
        (ApiError("", "", 409, "Conflict", "try again"), [OSError("connection refused")]),
    ],
)
@in_event_loop
async def test_pod_removal_is_retried_until_it_is_gone(
    tmp_path: Path, refusal: Exception, lookup: list[Exception]
) -> None:
    world, life = begin(tmp_path)
    world.api.refusals["delete"] = [refusal, refusal]
    world.api.refusals["get"] = list(lookup)
    await world.deleted(life)
    assert world.api.uid == ""


@in_event_loop
async def test_pod_removal_leaves_a_later_pod_of_its_name(tmp_path: Path) -> None:
    world, life = begin(tmp_path)
    await until(lambda: world.api.statuses)
    world.api.uid = "u2"
    world.pod.stop(0)
    await world.removed(life)
    assert world.api.uid == "u2"
