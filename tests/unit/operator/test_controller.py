"""When reconciles start, what is counted of them, and what the liveness probe returns."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest

from launcher.server import wildcard_address
from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.staged import JOB as JOB_PATH
from tests.unit.operator.staged import stage
from trainyard.k8s import names
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.k8s.objects import Objects
from trainyard.operator import controller as module
from trainyard.operator import names as n
from trainyard.operator.__main__ import LeaseHolder, run_until
from trainyard.operator.controller import STUCK_SECONDS, Controller, Watches, WorkQueue
from trainyard.operator.index import Key
from trainyard.operator.metrics import Metrics, serve_liveness
from trainyard.operator.reconciler import Reconciler

JOB = Key(n.JOB_KIND, "team", "vit")
QUEUE = Key(n.QUEUE_KIND, "team", "h100")
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{n.CONTROLLER_NAMESPACE}/leases/{n.CONTROLLER}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


def run(runs: Callable[[], Awaitable[None]], test: Callable[[], Awaitable[None]]) -> None:
    """Run a test while `runs` runs."""

    async def main() -> None:
        task = asyncio.ensure_future(runs())
        try:
            async with asyncio.timeout(20):
                await test()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


# --- the work queue

Process = Callable[[str], Awaitable[float | None]]


def work(process: Process, test: Callable[[WorkQueue[str]], Awaitable[None]], workers: int = 3) -> None:
    queue = WorkQueue(process, workers)
    run(queue.run, lambda: test(queue))


def test_queue_key_added_during_a_call_is_called_again() -> None:
    chance = random.Random(4)  # noqa: S311 - not for secrets
    state, seen = dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 0)
    active: set[str] = set()
    overlaps: list[str] = []

    async def process(key: str) -> None:
        overlaps.extend({key} & active)
        active.add(key)
        found = state[key]
        await asyncio.sleep(chance.random() * 0.004)
        seen[key] = found
        active.discard(key)

    async def test(queue: WorkQueue[str]) -> None:
        for _ in range(300):
            key = chance.choice("abcde")
            state[key] += 1
            queue.add(key, chance.choice([0.0, 0.001]))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.003)
        await until(lambda: not queue._entries)
        assert (seen, overlaps, len(queue)) == (state, [], 0)

    work(process, test)


def test_queue_key_is_called_when_due_or_sooner() -> None:
    calls: list[float] = []

    async def process(_key: str) -> float:
        calls.append(asyncio.get_running_loop().time())
        return 0.2

    async def test(queue: WorkQueue[str]) -> None:
        queue.add("a", 30)
        queue.add("a")
        await until(lambda: len(calls) == 2)
        assert 0.19 < calls[1] - calls[0] < 1
        queue.add("a", 60)  # does not delay it
        await until(lambda: len(calls) == 3)
        queue.add("a")
        await until(lambda: len(calls) == 4)
        assert calls[3] - calls[2] < 0.15

    work(process, test)


def test_queue_failed_key_pauses_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.04)
    monkeypatch.setattr(random, "uniform", lambda _a, b: b)
    calls: list[float] = []
    others: list[str] = []

    async def process(key: str) -> None:
        if key != "fails":
            others.append(key)
            return
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 5:
            raise ValueError("not today")

    async def test(queue: WorkQueue[str]) -> None:
        while len(calls) < 5:
            queue.add("fails")
            queue.add(f"works {len(others)}")
            await asyncio.sleep(0.002)
        pauses = [after - before for before, after in pairwise(calls)]
        for pause, minimum in zip(pauses, (0.04, 0.08, 0.16, 0.32), strict=True):
            assert pause >= minimum
        assert len(others) > 20, "a failed key delays no other"
        queue.add("fails")
        await until(lambda: len(calls) == 6)

    work(process, test, workers=1)


def test_queue_retry_waits_as_long_as_the_api_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    calls: list[float] = []

    async def process(_key: str) -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) == 1:
            raise ApiUnavailable("429 TooManyRequests", 0.3)

    async def test(queue: WorkQueue[str]) -> None:
        while len(calls) < 2:
            queue.add("a")
            await asyncio.sleep(0.005)
        assert calls[1] - calls[0] >= 0.3

    work(process, test)


# --- the controller


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeReconciler:
    """Count the reconciles of jobs. Those of queues fail."""

    def __init__(self) -> None:
        self.jobs = 0

    def reconcile_job(self, _namespace: str, _name: str) -> None:
        self.jobs += 1

    def reconcile_queue(self, _namespace: str, _name: str) -> None:
        raise ApiUnavailable("no answer")

    def close(self) -> None:
        """Nothing."""


class Parts:
    """A controller, and what it is made of."""

    def __init__(self, reconciler: FakeReconciler | None = None) -> None:
        self.reconciler, self.clock, self.metrics = reconciler or FakeReconciler(), Clock(), Metrics()
        self.controller = Controller(cast(Reconciler, self.reconciler), self.metrics, clock=self.clock)
        self.died: list[str] = []

    def scrape(self) -> str:
        return generate_latest(self.metrics._registry).decode()

    def probe(self, path: str = n.LIVENESS_PATH) -> tuple[int, str]:
        """Return the status of a probe, and when the last reconcile ended."""
        server = serve_liveness(
            "127.0.0.1", 0, self.controller.silent_seconds, STUCK_SECONDS, lambda: self.died
        )
        try:
            with urlopen(f"http://127.0.0.1:{server.server_port}{path}") as answer:
                status, body = answer.status, answer.read()
        except HTTPError as error:
            status, body = error.code, error.read()
        finally:
            server.shutdown()
            server.server_close()
        found = re.search(rb"\d+ s ago", body)
        return status, found[0].decode() if found else ""


def test_reconciles_start_only_while_the_lease_is_held() -> None:
    parts = Parts()
    controller = parts.controller

    async def enqueue(expected: int) -> None:
        controller.enqueue([(JOB, 0.0)])
        await asyncio.sleep(0.05)
        assert parts.reconciler.jobs == expected

    async def test() -> None:
        await enqueue(0)
        controller.allow(parts.clock() + 15)
        await until(lambda: parts.reconciler.jobs == 1)
        parts.clock.now += 16  # the renewal hangs, and another controller may hold the Lease
        await enqueue(1)
        controller.allow(parts.clock() + 15)
        await until(lambda: parts.reconciler.jobs == 2)
        controller.allow(float("-inf"))
        await enqueue(2)

    run(controller.run, test)


def test_resync_enqueues_all_jobs_and_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESYNC_SECONDS", 0.02)
    parts = Parts()
    meta = {"name": "vit", "namespace": "team", "generation": 1}
    parts.controller.index.change(None, {"kind": n.JOB_KIND, "metadata": meta})
    parts.controller.allow(parts.clock() + 15)
    run(parts.controller.run, lambda: until(lambda: parts.reconciler.jobs > 2))


def test_liveness_fails_if_event_loop_or_reconciles_hang() -> None:
    parts = Parts()
    parts.clock.now += STUCK_SECONDS + 1
    assert parts.probe() == (500, "181 s ago"), "it hangs"
    parts.controller.beat()
    assert parts.probe() == (200, "0 s ago"), "it waits for the Lease"
    parts.controller.allow(parts.clock() + 10 * STUCK_SECONDS)
    for seconds, answer in ((STUCK_SECONDS - 1, (200, "179 s ago")), (2, (500, "181 s ago"))):
        parts.clock.now += seconds
        parts.controller.beat()
        assert parts.probe() == answer
    assert parts.probe("/")[0] == 404
    parts.controller.allow(float("-inf"))
    assert parts.probe()[0] == 200
    parts.died.append("Pod")
    assert parts.probe()[0] == 500


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_watches_whose_thread_dies_name_its_kind(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        watches = Watches(api.client(), Parts().controller, asyncio.get_running_loop())
        assert watches.died() == []
        monkeypatch.setattr(watches._informers["Pod"], "_list", lambda: sys.exit())
        for each in watches._informers.values():
            each.start()
        await until(lambda: watches.died() == ["Pod"])
        await asyncio.to_thread(watches.stop)
        assert watches.died() == []

    asyncio.run(main())


def test_failed_reconcile_is_counted_and_a_sign_of_life() -> None:
    parts = Parts()

    async def test() -> None:
        parts.controller.allow(parts.clock() + 1000)
        parts.clock.now += 100
        parts.controller.beat()
        parts.controller.enqueue([(QUEUE, 0.0)])
        failures = 'trainyard_torchrun_reconcile_failures_total{kind="TorchrunQueue"} 1.0'
        await until(lambda: failures in parts.scrape())
        await until(lambda: parts.controller.silent_seconds() == 0)

    run(parts.controller.run, test)


def watch(api: FakeApi, test: Callable[[Controller], Awaitable[None]]) -> None:
    """Run a test while the watches of this API server run."""

    async def main() -> None:
        controller = Parts().controller
        client = api.client(retry=RetryPolicy(initial_delay=0.01, max_delay=0.05))
        watches = Watches(client, controller, asyncio.get_running_loop())
        await asyncio.to_thread(watches.start)
        try:
            await test(controller)
        finally:
            await asyncio.to_thread(watches.stop)

    asyncio.run(main())


def test_watches_enqueue_changes_and_wait_for_missing_kinds(api: FakeApi) -> None:
    async def test(controller: Controller) -> None:
        def keys() -> set[Key]:
            return {key for key, _ in controller.index.resync()}

        await until(lambda: keys() == {JOB})
        stage(api)  # as if the definition of queues came later
        await until(lambda: keys() == {JOB, QUEUE})
        api.remove(JOB_PATH)
        await until(lambda: keys() == {QUEUE})
        assert len(controller._queue) == 2

    stage(api, queue=False)
    watch(api, test)


def test_refused_watch_is_logged_once(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: Controller) -> None:
        await until(lambda: "Pod can't be watched" in caplog.text)
        await asyncio.sleep(0.3)

    api.refused.add(("GET", "/api/v1/pods"))
    watch(api, test)
    assert caplog.text.count("can't be watched") == 1, "a missing kind is no failure"


def test_shutdown_releases_the_lease_after_reconciles(api: FakeApi) -> None:
    class Slow(FakeReconciler):
        def reconcile_job(self, _namespace: str, _name: str) -> None:
            self.jobs += 1
            go_on.wait(30)

    async def main() -> None:
        slow, stopping = Slow(), asyncio.Event()
        controller = Controller(cast(Reconciler, slow), Metrics())
        lease = LeaseHolder(Objects(api.client(), n.FIELD_MANAGER), "a")
        running = asyncio.create_task(run_until(stopping, controller, lease))
        controller.enqueue([(JOB, 0.0)])
        await until(lambda: slow.jobs == 1)
        stopping.set()
        await asyncio.sleep(0.1)
        assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] == "a"
        go_on.set()
        async with asyncio.timeout(30):
            await running
        assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] is None

    go_on = threading.Event()
    asyncio.run(main())


# --- the Lease of the active controller


def hold(api: FakeApi, holder: str, clock: Clock) -> LeaseHolder:
    return LeaseHolder(
        Objects(api.client(), n.FIELD_MANAGER), holder, clock=clock, now=lambda: 1_800_000_000 + clock()
    )


def test_lease_is_taken_only_when_not_renewed(api: FakeApi) -> None:
    clock = Clock()
    first, second = hold(api, "a", clock), hold(api, "b", clock)
    assert first.keep() > clock()
    for _ in range(8):
        assert second.keep() <= clock()
        clock.now += names.LEASE_RENEW_SECONDS
        assert first.keep() > clock()
    assert second.other == "a"
    assert second.keep() <= clock()
    clock.now += names.LEASE_SECONDS
    assert second.keep() > clock()
    assert first.keep() <= clock()
    assert api.objects[LEASE_PATH]["spec"]["leaseTransitions"] == 1


def test_lease_is_renewed_after_retry_after(api: FakeApi) -> None:
    first = hold(api, "a", clock := Clock())
    api.faults = [(429, {"Retry-After": "30"}, b"{}")]
    assert first.keep() <= clock()
    assert first.pause == 30.0
    assert first.keep() > clock()
    assert first.pause == names.LEASE_RENEW_SECONDS


def test_lease_without_an_api_is_held_until_it_expires(api: FakeApi) -> None:
    clock = Clock()
    first = hold(api, "a", clock)
    assert first.keep() > clock()
    api.faults += [(403, {}, b"{}")] * 100
    clock.now += names.LEASE_SECONDS - 1
    assert first.keep() > clock()
    clock.now += 2
    assert first.keep() <= clock()
    api.faults.clear()
    assert first.keep() > clock()


@pytest.mark.parametrize(
    ("api", "address"),
    [("10.100.0.1", "0.0.0.0"), ("fd30:1::1", "::"), ("", "0.0.0.0")],  # noqa: S104
)
def test_controller_serves_on_every_address_of_its_cluster(api: str, address: str) -> None:
    assert wildcard_address({"KUBERNETES_SERVICE_HOST": api} if api else {}) == address
