"""When looks begin, what is counted of them, and what the liveness probe is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import kopf
import pytest
from prometheus_client import generate_latest

from tests.unit.launcher.api_server import FakeApi, serving
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.k8s.objects import Objects
from trainyard.operator import handlers
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.controller import STUCK_SECONDS, Controller
from trainyard.operator.index import Key
from trainyard.operator.kinds import Kinds
from trainyard.operator.metrics import Metrics
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit
JOB = Key(n.JOB_KIND, "team", "vit")
QUEUE = Key(n.QUEUE_KIND, "team", "h100")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Looks:
    """What would be looked at; a queue's look fails."""

    def __init__(self) -> None:
        self.jobs = 0

    def job(self, _namespace: str, _name: str) -> None:
        self.jobs += 1

    def queue(self, _namespace: str, _name: str) -> None:
        raise ApiUnavailable("no answer")

    def close(self) -> None:
        """Nothing."""


def working(then: Callable[[Controller, Looks, Clock, Metrics], Awaitable[None]]) -> None:
    async def main() -> None:
        looks, clock, metrics = Looks(), Clock(), Metrics()
        made = Controller(cast(Objects, None), cast(Reconciler, looks), metrics, clock=clock)
        task = asyncio.create_task(made.run())
        try:
            async with asyncio.timeout(20):
                await then(made, looks, clock, metrics)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_no_look_begins_before_the_lease_is_held_or_after_its_end() -> None:
    async def then(controller: Controller, looks: Looks, clock: Clock, _: Metrics) -> None:
        controller.hear([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert looks.jobs == 0
        controller.allow(clock() + 15)
        await until(lambda: looks.jobs == 1)
        clock.now += 16  # the renewal hangs, and another controller has it by now
        controller.hear([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert looks.jobs == 1
        controller.allow(clock() + 15)
        await until(lambda: looks.jobs == 2)
        controller.allow(float("-inf"))
        controller.hear([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert looks.jobs == 2

    working(then)


def test_the_api_is_left_alone_as_long_as_it_asks_also_beyond_the_patience_of_a_request() -> None:
    async def main(api: FakeApi) -> None:
        clock = Clock()
        objects = Objects(api.client(retry=RetryPolicy()), n.FIELD_MANAGER)
        reconciler = Reconciler(objects, ClusterReader(objects, "tools@sha256:1"))
        controller = Controller(objects, reconciler, Metrics(), clock=clock)
        controller.allow(clock() + 1000)
        task = asyncio.create_task(controller.run())
        other, beats = Key(n.JOB_KIND, "team", "other"), 0

        def of(name: str) -> int:
            return sum(path.endswith(f"/torchrunjobs/{name}") for _, path, _ in api.requests)

        async def at(moment: float) -> None:
            """Another job is looked at at this moment, and by then whatever is due."""
            nonlocal beats
            clock.now, beats = moment, beats + 1
            controller.hear([(JOB, 0.0), (other, 0.0)])
            await until(lambda: of("other") == beats)

        try:
            async with asyncio.timeout(20):
                api.faults = [(429, {"Retry-After": "30"}, b"{}")]
                controller.hear([(JOB, 0.0)])
                await until(lambda: not api.faults)
                await until(lambda: len(controller._work) == 0)
                for moment in (101.0, 121.0, 129.9):
                    await at(moment)
                assert of("vit") == 0
                await at(130.1)
                await until(lambda: of("vit") == 1)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with serving(FakeApi()) as api:
        asyncio.run(main(api))


def probe(controller: Controller) -> Callable[..., Awaitable[str]]:
    registry: Any = handlers.registry(controller, Kinds(handlers.settings()))
    (handler,) = (each for each in registry._activities._handlers if each.id == "looks")
    return cast(Callable[..., Awaitable[str]], handler.fn)


def test_the_liveness_probe_fails_where_no_look_ends_and_only_while_it_holds_the_lease() -> None:
    async def main() -> None:
        clock = Clock()
        controller = Controller(cast(Objects, None), cast(Reconciler, Looks()), Metrics(), clock=clock)
        asked = probe(controller)
        clock.now += 10 * STUCK_SECONDS
        assert "0 s ago" in await asked()
        controller.allow(clock() + 10 * STUCK_SECONDS)
        clock.now += STUCK_SECONDS - 1
        assert "179 s ago" in await asked()
        clock.now += 2
        with pytest.raises(kopf.PermanentError, match="no look came to an end for 181 s"):
            await asked()

    asyncio.run(main())


def test_a_list_of_pods_asks_for_looks_at_the_jobs_of_those_that_run() -> None:
    async def main() -> None:
        controller = Controller(cast(Objects, None), cast(Reconciler, Looks()), Metrics())
        registry: Any = handlers.registry(controller, Kinds(handlers.settings()))
        (handler,) = (each for each in registry._watching._handlers if each.id == "pods.")
        for name, phase in (("trained", "Succeeded"), ("trains", "Running")):
            meta = {"name": f"{name}-0-0-abcde", "namespace": "team", "labels": {n.LABEL_JOB: name}}
            pod = {"kind": "Pod", "metadata": meta, "status": {"phase": phase}}
            await handler.fn(event={"type": None, "object": pod})
            assert len(controller._work) == (phase == "Running")

    asyncio.run(main())


def test_a_look_that_fails_is_counted_and_is_a_sign_of_life() -> None:
    async def then(controller: Controller, _: Looks, clock: Clock, metrics: Metrics) -> None:
        controller.allow(clock() + 1000)
        clock.now += 100
        controller.hear([(QUEUE, 0.0)])

        def failures() -> bool:
            told = generate_latest(metrics._registry).decode()
            return 'trainyard_torchrun_reconcile_failures_total{kind="TorchrunQueue"} 1.0' in told

        await until(failures)
        await until(lambda: controller.silent_seconds() == 0)

    working(then)
