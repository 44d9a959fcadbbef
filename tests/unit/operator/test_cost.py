"""The node-hours of a job and their price, from its nodes to its status and its last Event."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from launcher.cost import Offering
from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator import made
from tests.unit.operator.staged import JOB, NOW, Mortal, finish, phase
from tests.unit.operator.test_cluster_reader import NODES, buy, displace, placeholder_names, pooled
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.status import fit_status
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.context import JobCost, build_context
from trainyard.operator.cost import CostMeters
from trainyard.operator.reconciler import Reconciler

ON_DEMAND, SPOT = (Offering("p5.48xlarge", "us-west-2b", each) for each in ("on-demand", "spot"))
PRICES = {ON_DEMAND: 7.2, SPOT: 1.8}
HOUR = 3600.0


class Controller:
    """A controller whose meter has its own clock, in seconds."""

    def __init__(self, api: FakeApi) -> None:
        self.api, self.clock, self.events = api, 0.0, itertools.count()
        self.restart()

    def restart(self) -> None:
        self.objects = Mortal(self.api)
        reader = ClusterReader(self.objects, "tools@sha256:1", clock=lambda: self.clock)
        # The name of an Event contains the time.
        options: dict[str, Any] = {"now": lambda: NOW + next(self.events) / 1000, "price": PRICES.get}
        self.reconciler = Reconciler(self.objects, reader, clock=lambda: self.clock, **options)

    def settle(self, after: float = 0.0) -> float | None:
        """Reconcile after these seconds until nothing is due at once. Return when it is due again."""
        self.clock += after
        while (left := self.reconciler.reconcile_job("team", "vit")) is not None and left < 1:
            pass
        return left

    def pass_time(self, seconds: float) -> None:
        """Reconcile once a minute, as a running job is."""
        for _ in range(int(seconds / 60)):
            self.settle(60)

    @property
    def cost(self) -> dict[str, Any]:
        return dict(self.api.objects[JOB]["status"].get("cost") or {})


def launch_nodes(api: FakeApi) -> None:
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
    launch_nodes(api)
    controller.settle()
    assert controller.cost == {}
    controller.pass_time(HOUR / 2)
    displace(api)
    controller.settle()
    assert (phase(api), placeholder_names(api)) == (n.PHASE_RUNNING, [])
    return controller


def test_cost_counts_all_nodes_until_the_end(running: Controller, api: FakeApi) -> None:
    """The time between two controllers is not counted."""
    running.pass_time(HOUR)
    running.clock += 100 * HOUR
    running.restart()
    running.settle()
    running.pass_time(HOUR)
    finish(api)
    assert running.settle() is None
    assert phase(api) == n.PHASE_SUCCEEDED
    assert running.cost == {"nodeHours": 5.0, "idleNodeHours": 1.0, "usd": 22.5}
    messages = [each["message"] for path, each in api.objects.items() if "/events/" in path]
    assert "all workers succeeded; 5.00 node-hours, 20% idle, about 22.50 USD" in messages
    running.settle(HOUR)
    assert running.cost["nodeHours"] == 5.0, "a job that has ended"


def test_cost_alone_is_written_once_a_minute(running: Controller) -> None:
    before = running.objects.writes
    assert running.settle(20) == 40
    assert running.settle(20) == 20
    assert running.objects.writes == before
    assert running.settle(20) == 60
    assert running.objects.writes == before + 1
    assert running.cost["nodeHours"] == pytest.approx(1 + 2 * 60 / HOUR, abs=1e-4)


def test_failed_list_of_nodes_leaves_their_hours_without_price(running: Controller, api: FakeApi) -> None:
    running.restart()
    api.refused = {("GET", NODES)}
    running.settle()
    running.pass_time(HOUR)
    finish(api)
    running.settle()
    assert phase(api) == n.PHASE_SUCCEEDED
    assert (running.cost["nodeHours"], running.cost["unpricedNodeHours"]) == (3.0, 2.0)


def test_write_of_an_unknown_status_field_fails() -> None:
    ctx = build_context(made.job(), made.queue(), [], made.CLUSTER, NOW)
    with pytest.raises(TypeError, match="exitcode"):
        ctx.write(n.PHASE_FAILED, n.REASON_WORKER_FAILED, exitcode=1)


def test_status_that_differs_in_invalid_values_is_not_written() -> None:
    """A job whose message has control characters would be written in each reconcile."""
    ctx = build_context(made.job(), made.queue(), [], made.CLUSTER, NOW)
    first = ctx.write(n.PHASE_PENDING, "NoQueue", "a\x1b[31mb").status
    assert first is not None
    old = fit_status(n.JOB_KIND, first)
    cost = JobCost(status={"nodeHours": 1.0}, summary="", is_due=False, requeue_after=9.0)
    ctx = build_context({**made.job(), "status": old}, made.queue(), [], made.CLUSTER, NOW, cost=cost)
    again = ctx.write(n.PHASE_PENDING, "NoQueue", "a\x1b[31mb").status
    assert again is not None
    assert fit_status(n.JOB_KIND, again) == old


def job(uid: str, hours: float) -> dict[str, Any]:
    cost = {"nodeHours": hours, "idleNodeHours": 0.0, "usd": 1.0} if hours else {}
    return {"metadata": {"uid": uid}, "status": {"phase": n.PHASE_RUNNING, "cost": cost}}


def count(meters: CostMeters, item: dict[str, Any], *owners: str) -> JobCost | None:
    """Count this job. Each of these jobs has a worker on node a."""
    objects: list[dict[str, Any]] = []
    for uid in owners:
        meta = {"name": uid, "uid": f"{uid}-0", "ownerReferences": [{"uid": uid}]}
        objects.append({"kind": "Job", "metadata": meta, "spec": {}})
        meta = {"name": uid, "uid": f"{uid}-0-0", "ownerReferences": [{"uid": f"{uid}-0"}]}
        meta["labels"] = {n.LABEL_ATTEMPT: "0"}
        objects.append({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "a"}, "status": {}})
    return meters.count("vit", build_context(item, None, objects, made.CLUSTER, NOW))


@pytest.mark.parametrize(
    ("later", "seconds", "hours"),
    [
        (job("a", 0), 36, 0.01),
        (job("a", 10), 36, 10.0),  # another controller has counted meanwhile
        (job("b", 0), 36, None),  # a job of the same name
        (job("a", 0), 360, None),  # this controller had no API server
    ],
)
def test_status_of_the_job_is_the_store(later: dict[str, Any], seconds: int, hours: float | None) -> None:
    clock, uid = 0.0, later["metadata"]["uid"]
    meters = CostMeters(PRICES.get, lambda: {"a": SPOT}, lambda: clock)
    count(meters, job("a", 0), "a")
    clock += seconds
    found = count(meters, later, uid, "other")
    assert found is not None
    assert found.status.get("nodeHours") == hours
    recorded = {**later, "status": {"phase": n.PHASE_SUSPENDED, "cost": found.status}}
    count(meters, recorded, "other")
    assert count(meters, recorded, "other") is None, "nothing is left to report"


def test_price_is_read_when_the_node_has_its_labels() -> None:
    clock, nodes = 0.0, {"a": Offering("", "", "on-demand")}
    meters = CostMeters(PRICES.get, lambda: nodes, lambda: clock)
    count(meters, job("a", 0), "a")
    nodes["a"] = SPOT
    for _ in range(2):
        clock += 36
        found = count(meters, job("a", 0), "a")
    assert found is not None
    assert found.status == {"nodeHours": 0.02, "idleNodeHours": 0.0, "unpricedNodeHours": 0.01, "usd": 0.018}
