"""When looks begin, what is counted of them, and what the liveness probe is reported."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.operator.staged import JOB as JOB_PATH
from tests.unit.operator.staged import stage
from tests.unit.operator.test_lease import PATH as LEASE_PATH
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.__main__ import LeaseHolder, run_until
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.controller import STUCK_SECONDS, Controller, Watches
from trainyard.operator.index import Key, converter
from trainyard.operator.metrics import Metrics, serve_liveness
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit
JOB = Key(n.JOB_KIND, "team", "vit")
QUEUE = Key(n.QUEUE_KIND, "team", "h100")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeReconciler:
    """What would be looked at; a queue's look fails."""

    def __init__(self) -> None:
        self.jobs = 0

    def reconcile_job(self, _namespace: str, _name: str) -> None:
        self.jobs += 1

    def reconcile_queue(self, _namespace: str, _name: str) -> None:
        raise ApiUnavailable("no answer")

    def close(self) -> None:
        """Nothing."""


def working(then: Callable[[Controller, FakeReconciler, Clock, Metrics], Awaitable[None]]) -> None:
    async def main() -> None:
        looks, clock, metrics = FakeReconciler(), Clock(), Metrics()
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


def test_reconciles_start_only_while_the_lease_is_held() -> None:
    async def then(controller: Controller, looks: FakeReconciler, clock: Clock, _: Metrics) -> None:
        controller.enqueue([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert looks.jobs == 0
        controller.allow(clock() + 15)
        await until(lambda: looks.jobs == 1)
        clock.now += 16  # the renewal hangs, and another controller has it by now
        controller.enqueue([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert looks.jobs == 1
        controller.allow(clock() + 15)
        await until(lambda: looks.jobs == 2)
        controller.allow(float("-inf"))
        controller.enqueue([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert looks.jobs == 2

    working(then)


def test_retry_after_beyond_the_request_timeout_is_kept() -> None:
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
            controller.enqueue([(JOB, 0.0), (other, 0.0)])
            await until(lambda: of("other") == beats)

        try:
            async with asyncio.timeout(20):
                api.faults = [(429, {"Retry-After": "30"}, b"{}")]
                controller.enqueue([(JOB, 0.0)])
                await until(lambda: not api.faults)
                await until(lambda: len(controller._queue) == 0)
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


def test_liveness_fails_if_event_loop_or_reconciles_hang() -> None:
    async def main() -> None:
        clock = Clock()
        controller = Controller(
            cast(Objects, None), cast(Reconciler, FakeReconciler()), Metrics(), clock=clock
        )
        died: list[str] = []
        server = serve_liveness("127.0.0.1", 0, controller.silent_seconds, STUCK_SECONDS, lambda: died)
        url = f"http://127.0.0.1:{server.server_port}"
        clock.now += STUCK_SECONDS + 1
        assert await asyncio.to_thread(probe, f"{url}{n.LIVENESS_PATH}") == (500, "181 s ago"), "it hangs"
        controller.beat()
        assert await asyncio.to_thread(probe, f"{url}{n.LIVENESS_PATH}") == (200, "0 s ago"), "it waits"
        controller.allow(clock() + 10 * STUCK_SECONDS)
        clock.now += STUCK_SECONDS - 1
        controller.beat()
        assert await asyncio.to_thread(probe, f"{url}{n.LIVENESS_PATH}") == (200, "179 s ago")
        clock.now += 2
        controller.beat()
        assert await asyncio.to_thread(probe, f"{url}{n.LIVENESS_PATH}") == (500, "181 s ago")
        assert (await asyncio.to_thread(probe, f"{url}/"))[0] == 404
        controller.allow(float("-inf"))
        died.append("Pod")
        assert await asyncio.to_thread(probe, f"{url}{n.LIVENESS_PATH}") == (500, "0 s ago")
        server.shutdown()

    asyncio.run(main())


def probe(url: str) -> tuple[int, str]:
    """Return the status of a probe, and when the last reconcile ended."""
    try:
        with urlopen(url) as answer:  # noqa: S310
            status, body = answer.status, answer.read()
    except HTTPError as error:
        status, body = error.code, error.read()
    found = re.search(rb"\d+ s ago", body)
    return status, found[0].decode() if found else ""


@pytest.mark.parametrize(
    ("phase", "is_new", "enqueued"), [("Succeeded", True, 0), ("Running", True, 1), ("Succeeded", False, 1)]
)
def test_a_new_pod_enqueues_its_job_unless_it_is_finished(phase: str, is_new: bool, enqueued: int) -> None:
    async def main() -> None:
        controller = Controller(cast(Objects, None), cast(Reconciler, FakeReconciler()), Metrics())
        meta = {"name": "vit-0-0-abcde", "namespace": "team", "labels": {n.LABEL_JOB: "vit", "other": "x"}}
        pod = converter("Pod")({"metadata": meta, "status": {"phase": phase}})
        controller.change(None if is_new else {}, pod)
        assert len(controller._queue) == enqueued

    asyncio.run(main())


def test_watches_enqueue_what_changes_and_wait_for_missing_kinds() -> None:
    async def main(api: FakeApi) -> None:
        client = api.client(retry=RetryPolicy(initial_delay=0.01, max_delay=0.05))
        controller = Controller(
            Objects(client, n.FIELD_MANAGER), cast(Reconciler, FakeReconciler()), Metrics()
        )
        stage(api, queue=False)
        watches = Watches(client, controller, asyncio.get_running_loop())
        watches.start()
        try:
            async with asyncio.timeout(20):
                await until(lambda: controller.index.all_keys() == {JOB})
                stage(api)  # as if the definition of queues came later
                await until(lambda: QUEUE in controller.index.all_keys())
                api.remove(JOB_PATH)
                await until(lambda: controller.index.all_keys() == {QUEUE})
                assert len(controller._queue) == 2
        finally:
            await asyncio.to_thread(watches.stop)

    with serving(FakeApi()) as api:
        asyncio.run(main(api))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_watches_whose_thread_dies_name_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(api: FakeApi) -> None:
        controller = Controller(cast(Objects, None), cast(Reconciler, FakeReconciler()), Metrics())
        watches = Watches(api.client(), controller, asyncio.get_running_loop())
        assert watches.died() == []
        monkeypatch.setattr(watches._informers["Pod"], "_list", lambda: sys.exit())
        for each in watches._informers.values():
            each.start()
        await until(lambda: watches.died() == ["Pod"])
        await asyncio.to_thread(watches.stop)
        assert watches.died() == []

    with serving(FakeApi()) as api:
        asyncio.run(main(api))


def test_shutdown_releases_the_lease_once_no_reconcile_runs() -> None:
    class Slow(FakeReconciler):
        def reconcile_job(self, _namespace: str, _name: str) -> None:
            self.jobs += 1
            go_on.wait(5)

    async def main(api: FakeApi) -> None:
        slow, stopping = Slow(), asyncio.Event()
        controller = Controller(cast(Objects, None), cast(Reconciler, slow), Metrics())
        objects = Objects(api.client(), n.FIELD_MANAGER)
        running = asyncio.create_task(run_until(stopping, controller, LeaseHolder(objects, "a")))
        controller.enqueue([(JOB, 0.0)])
        await until(lambda: slow.jobs == 1)
        stopping.set()
        await asyncio.sleep(0.1)
        assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] == "a"
        go_on.set()
        await asyncio.wait_for(running, 5)
        assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] is None

    go_on = threading.Event()
    with serving(FakeApi()) as api:
        asyncio.run(main(api))


def test_waiting_metric_counts_at_the_scrape() -> None:
    async def main() -> None:
        metrics = Metrics()
        controller = Controller(cast(Objects, None), cast(Reconciler, FakeReconciler()), metrics)
        for waiting in (0, 2):
            reported = generate_latest(metrics._registry).decode()
            assert f"trainyard_torchrun_waiting {waiting}.0" in reported
            controller.enqueue([(JOB, 0.0), (QUEUE, 0.0), (QUEUE, 0.0)])

    asyncio.run(main())


def test_failed_reconcile_is_counted_and_a_sign_of_life() -> None:
    async def then(controller: Controller, _: FakeReconciler, clock: Clock, metrics: Metrics) -> None:
        controller.allow(clock() + 1000)
        clock.now += 100
        controller.beat()
        controller.enqueue([(QUEUE, 0.0)])

        def failures() -> bool:
            reported = generate_latest(metrics._registry).decode()
            return 'trainyard_torchrun_reconcile_failures_total{kind="TorchrunQueue"} 1.0' in reported

        await until(failures)
        await until(lambda: controller.silent_seconds() == 0)

    working(then)


def test_refused_watch_is_logged_once_and_a_missing_kind_never(caplog: pytest.LogCaptureFixture) -> None:
    async def main(api: FakeApi) -> None:
        client = api.client(retry=RetryPolicy(initial_delay=0.01, max_delay=0.05))
        controller = Controller(
            Objects(client, n.FIELD_MANAGER), cast(Reconciler, FakeReconciler()), Metrics()
        )
        api.refused.add(("GET", "/api/v1/pods"))
        watches = Watches(client, controller, asyncio.get_running_loop())
        await asyncio.to_thread(watches.start)
        try:
            async with asyncio.timeout(20):
                await until(lambda: "Pod can't be watched" in caplog.text)
                await asyncio.sleep(0.3)
        finally:
            await asyncio.to_thread(watches.stop)

    with serving(FakeApi()) as api:
        asyncio.run(main(api))
    assert caplog.text.count("can't be watched") == 1
