"""The node-hours of a job and their price, from its nodes to its status and its last Event."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from launcher.cost import Offering, Price, unknown
from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.staged import JOB, NOW, Mortal, finish, phase
from tests.unit.operator.test_pool_reader import NODES, buy, displace, placeholder_names, pooled
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.cost import CostMeters
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit

ON_DEMAND, SPOT = (Offering("p5.48xlarge", "us-west-2b", each) for each in ("on-demand", "spot"))
PRICES = {ON_DEMAND: 7.2, SPOT: 1.8}
HOUR = 3600.0


class Controller:
    """A controller whose meter has its own clock, in seconds."""

    def __init__(self, api: FakeApi, price: Price = PRICES.get) -> None:
        self.api, self.price, self.clock, self.events = api, price, 0.0, itertools.count()
        self.restart()

    def restart(self) -> None:
        self.objects = Mortal(self.api)
        reader = ClusterReader(self.objects, "tools@sha256:1", clock=lambda: self.clock)
        self.reconciler = Reconciler(
            self.objects,
            reader,
            now=lambda: NOW + next(self.events) / 1000,  # an Event is named by its time
            price=self.price,
            clock=lambda: self.clock,
        )

    def settle(self, after: float = 0.0) -> float | None:
        """Reconcile after these seconds until nothing is due at once. Return when it is due again."""
        self.clock += after
        while (left := self.reconciler.reconcile_job("team", "vit")) is not None and left < 1:
            pass
        return left

    @property
    def cost(self) -> dict[str, Any]:
        return dict(self.api.objects[JOB]["status"].get("cost") or {})


def buy_both(api: FakeApi) -> None:
    """Launch a node on demand and a Spot Instance for the placeholders."""
    buy(api)
    for index, each in enumerate((ON_DEMAND, SPOT)):
        node = api.objects[f"{NODES}/node-{index}"]
        labels = (names.LABEL_INSTANCE_TYPE, names.LABEL_ZONE, names.LABEL_CAPACITY_TYPE)
        node["metadata"]["labels"] |= dict(zip(labels, each, strict=True))


@pytest.fixture
def running(api: FakeApi) -> Controller:
    """A running job of two nodes, which have been idle for half an hour."""
    controller = Controller(api)
    pooled(api)
    controller.settle()
    buy_both(api)
    controller.settle()
    assert controller.cost == {}
    controller.settle(HOUR / 2)
    displace(api)
    controller.settle()
    assert (phase(api), placeholder_names(api)) == (n.PHASE_RUNNING, [])
    return controller


@pytest.mark.parametrize(
    ("price", "usd", "said"),
    [
        (PRICES.get, {"usd": 22.5}, "5.00 node-hours, 20% idle, about 22.50 USD"),
        (unknown, {}, "5.00 node-hours, 20% idle, price not known"),
    ],
)
def test_cost_counts_all_nodes_until_the_end(
    api: FakeApi, price: Price, usd: dict[str, float], said: str
) -> None:
    """The time between two controllers is not counted."""
    controller = Controller(api, price)
    pooled(api)
    controller.settle()
    buy_both(api)
    controller.settle()
    controller.settle(HOUR / 2)
    displace(api)
    controller.settle()
    controller.settle(HOUR)
    controller.clock += 100 * HOUR
    controller.restart()
    controller.settle()
    controller.clock += HOUR
    finish(api)
    assert controller.settle() is None
    assert phase(api) == n.PHASE_SUCCEEDED
    assert controller.cost == {"nodeHours": 5.0, "idleNodeHours": 1.0, **usd}
    messages = [each["message"] for path, each in api.objects.items() if "/events/" in path]
    assert f"all workers succeeded; {said}" in messages
    controller.settle(HOUR)
    assert controller.cost["nodeHours"] == 5.0, "a job that has ended"


def test_cost_alone_is_written_once_a_minute(running: Controller) -> None:
    before = running.objects.writes
    assert running.settle(20) == 40
    assert running.settle(20) == 20
    assert running.objects.writes == before
    assert running.settle(20) == 60
    assert running.objects.writes == before + 1
    assert running.cost["nodeHours"] == pytest.approx(1 + 2 * 60 / HOUR, abs=1e-4)


def test_failed_list_of_nodes_does_not_stop_the_job(running: Controller, api: FakeApi) -> None:
    running.restart()
    api.refused = {("GET", NODES)}
    finish(api)
    running.settle()
    assert phase(api) == n.PHASE_SUCCEEDED
    assert running.cost["nodeHours"] == 1.0


def job(uid: str, hours: float) -> dict[str, Any]:
    cost = {"nodeHours": hours, "idleNodeHours": 0.0, "usd": 1.0} if hours else {}
    return {"metadata": {"uid": uid}, "status": {"phase": n.PHASE_RUNNING, "cost": cost}}


@pytest.mark.parametrize(
    ("later", "hours"),
    [
        (job("a", 0), 1.0),
        (job("a", 10), 10.0),  # another controller has counted meanwhile
        (job("b", 0), None),  # a job of the same name
    ],
)
def test_status_of_the_job_is_the_store(later: dict[str, Any], hours: float | None) -> None:
    clock = 0.0
    meters = CostMeters(PRICES.get, lambda: {"a": SPOT}, lambda: clock)
    labels = {n.LABEL_ATTEMPT: "0"}
    worker = {"kind": "Pod", "metadata": {"labels": labels}, "spec": {"nodeName": "a"}, "status": {}}
    meters.count("vit", job("a", 0), [worker])
    clock = HOUR
    found = meters.count("vit", later, [worker])
    assert found is not None
    assert found.section.get("nodeHours") == hours
    ended = {**worker, "status": {"phase": "Succeeded"}}
    recorded = {**later, "status": {"phase": n.PHASE_SUSPENDED, "cost": found.section}}
    assert meters.count("vit", recorded, [ended]) is None, "nothing is left to report"
