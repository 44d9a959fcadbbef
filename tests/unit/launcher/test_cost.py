"""The node-hours of a run and their price, from its nodes to its last line, Event and annotations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from launcher import backends, manifests
from launcher.actions import End, Memory
from launcher.cost import KarpenterPrices, Meter, Offering, unknown
from launcher.progress import Usage, initial_progress, loads
from launcher.request import Request
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.cluster import stored_progress
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.program import value
from tests.unit.launcher.test_capacity import NOW, node, placeholder, seen, worker
from tests.unit.launcher.test_lease import LEASE, Clock
from tests.unit.launcher.test_loop import EVENTS, hurried
from tests.unit.launcher.test_loop_restarts import JOB, put_outcome, put_worker
from tests.unit.launcher.test_metrics import scraped
from trainyard.k8s import names

ZONE = "us-west-2b"
PRICES = {
    Offering("g5.12xlarge", ZONE, "on-demand"): 7.2,
    Offering("g5.12xlarge", ZONE, "spot"): 1.8,
}
# As Karpenter v1.14.1 writes them.
METRICS = """\
# HELP karpenter_cloudprovider_instance_type_offering_available Instance type offering availability
# TYPE karpenter_cloudprovider_instance_type_offering_available gauge
karpenter_cloudprovider_instance_type_offering_available{capacity_type="spot",instance_type="g5.12xlarge",zone="us-west-2b"} 1
# HELP karpenter_cloudprovider_instance_type_offering_price_estimate Instance type offering estimated hourly price
# TYPE karpenter_cloudprovider_instance_type_offering_price_estimate gauge
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="on-demand",instance_type="g5.12xlarge",zone="us-west-2b"} 7.2
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="reserved",instance_type="g5.12xlarge",zone="us-west-2b"} 7.2e-07
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="spot",instance_type="g5.12xlarge",zone="us-west-2b"} 1.8
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="spot",instance_type="p5.48xlarge",zone="us-west-2b"} +Inf
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="on-demand",instance_type="p5.48xlarge",zone="us-west-2b"} 0
"""  # noqa: E501


@pytest.fixture
def karpenter() -> Iterator[str]:
    """The address of a server that is Karpenter's active replica, then the other one, and then breaks off."""
    answers = iter((METRICS, "# no prices\n"))

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = next(answers, None)
            self.send_response(200)
            if body is None:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"20\r\nkarp" if body is None else body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_prices_come_from_karpenters_metrics(karpenter: str) -> None:
    prices = KarpenterPrices(karpenter)
    offering = Offering("g5.12xlarge", ZONE, "on-demand")
    assert prices(offering) is None
    assert prices.read()
    assert [prices(offering._replace(capacity_type=each)) for each in ("on-demand", "spot", "reserved")] == [
        7.2,
        1.8,
        7.2,
    ]
    assert prices(offering._replace(zone="us-west-2c")) is None
    for kind in ("on-demand", "spot"):
        of_type = offering._replace(instance_type="p5.48xlarge", capacity_type=kind)
        assert prices(of_type) is None, "0 and infinity are no price"


def test_prices_survive_a_replica_without_prices(karpenter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise InterruptedError

    monkeypatch.setattr("launcher.cost.time.sleep", sleep)
    prices = KarpenterPrices(karpenter)
    with pytest.raises(InterruptedError):
        prices._keep()
    assert prices(Offering("g5.12xlarge", ZONE, "on-demand")) == 7.2
    assert pauses == [3600, 10, 10]


def test_node_is_idle_until_its_worker_is_there(request_: Request) -> None:
    meter = Meter(PRICES.get)
    labels = {"karpenter.sh/nodepool": "small", names.LABEL_CAPACITY_TYPE: "spot"}
    nodes = [node("a"), node("b", metadata__labels=labels)]
    pods = [placeholder(request_, 0, "a"), placeholder(request_, 1, "b"), placeholder(request_, 2)]
    meter.count(request_, seen(nodes, pods), NOW)
    meter.count(request_, seen(nodes, [worker(0, "a", "Running"), *pods]), NOW + 3600)
    # A run that is followed reads no nodes.
    ended = [worker(0, "a", "Succeeded"), worker(1, "b", "Running")]
    meter.count(request_, seen([], ended), NOW + 7200)
    usage = meter.count(request_, seen([], []), NOW + 10800)
    assert usage == Usage(
        node_seconds=5 * 3600, idle_node_seconds=3 * 3600, usd=pytest.approx(2 * 7.2 + 3 * 1.8)
    )
    assert usage.describe() == "5.00 node-hours, 60% idle, about 19.80 USD"


def test_usage_without_price_has_no_cost(request_: Request) -> None:
    meter = Meter(unknown)
    meter.count(request_, seen([], [worker(0, "a", "Running")]), NOW)
    usage = meter.count(request_, seen([], []), NOW + 36)
    assert usage.describe() == "0.0100 node-hours, 0% idle, price not known"
    assert dataclasses.replace(usage, node_seconds=72.0, usd=0.05).describe().endswith("at least 0.0500 USD")


def test_price_that_is_known_late_counts_from_the_start(request_: Request) -> None:
    prices: dict[Offering, float] = {}
    meter = Meter(prices.get)
    meter.resume(Usage(node_seconds=3600, unpriced_node_seconds=3600))
    meter.count(request_, seen([], [worker(0, "a", "Running")]), NOW)
    assert meter.count(request_, seen([], [worker(0, "a", "Running")]), NOW + 3600).usd == 0
    prices.update(PRICES)
    usage = meter.count(request_, seen([], []), NOW + 7200)
    assert usage == Usage(node_seconds=3 * 3600, unpriced_node_seconds=3600, usd=pytest.approx(2 * 7.2))


def test_next_launcher_does_not_count_the_pause(request_: Request) -> None:
    meter = Meter(PRICES.get)
    meter.count(request_, seen([], [worker(0, "a", "Running")]), NOW)
    meter.resume(Usage(node_seconds=100.0, usd=0.2))
    meter.count(request_, seen([], [worker(0, "a", "Running")]), NOW + 3600)
    assert meter.count(request_, seen([], []), NOW + 3610).node_seconds == 110


def test_node_keeps_its_price_in_the_next_pool(request_: Request) -> None:
    meter = Meter(PRICES.get)
    other = dataclasses.replace(
        request_, pool=dataclasses.replace(request_.pool, instance_type="p5.48xlarge")
    )
    meter.count(request_, seen([node("a")], [placeholder(request_, 0, "a")]), NOW)
    assert meter.count(other, seen([], []), NOW + 3600).usd == pytest.approx(7.2)


def test_next_launcher_reads_how_nodes_were_bought(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watches of a running job have no nodes. A clock that is set back or forward adds no node-hours."""
    clock, spot = Clock(), {"karpenter.sh/nodepool": "small", names.LABEL_CAPACITY_TYPE: "spot"}
    for index, name in enumerate("ab"):
        cluster.put_node(api, name, metadata__labels=dict(spot))
        put_worker(api, index, "Running")
    api.put(JOB, backends.of(asked()).build(asked(), 2, "two nodes", 0))
    began = clock.now

    def go(now: float) -> None:
        if now > began + 100:
            put_outcome(api, "Succeeded")

    runner, _ = hurried(api, asked(), go, clock, "pod-b")
    runner._meter.price = PRICES.get
    jumps = itertools.cycle((0, 86400, -86400))
    monkeypatch.setattr(runner.gateway, "_now", lambda: clock.now + next(jumps))
    assert runner.run() == names.EXIT_SUCCEEDED
    usage = runner._meter.usage
    assert 2 * 90 < usage.node_seconds < 2 * 120
    assert usage.usd == pytest.approx(usage.node_seconds / 3600 * 1.8)


def test_run_ends_with_its_cost(api: FakeApi) -> None:
    for name in "ab":
        cluster.put_node(api, name)

    def go(now: float) -> None:
        if JOB not in api.objects or api.objects[JOB].get("status"):
            return
        if not any(path.startswith(f"{cluster.PODS}/train-r1") for path in api.objects):
            for index in range(2):
                put_worker(api, index, "Running")
        elif now > Clock().now + 200:
            put_outcome(api, "Succeeded")

    runner, said = hurried(api, asked(minNodes=2, maxNodes=2), go)
    runner._meter.price = PRICES.get
    assert runner.run() == names.EXIT_SUCCEEDED
    stored = loads(stored_progress(api.objects[LEASE]), 1).usage
    assert 2 * 150 < stored.node_seconds < 2 * 240
    assert stored.usd == pytest.approx(stored.node_seconds / 3600 * 7.2, abs=1e-3)
    ending = f"trained on 2 nodes; {stored.describe()}"
    assert ending.endswith(" USD")
    assert f'reason="{ending}"' in said[-1]
    messages = [event["message"] for path, event in api.objects.items() if path.startswith(EVENTS)]
    assert f"2 of 2 nodes: {ending}" in messages
    noted = api.objects[JOB]["metadata"]["annotations"]
    assert float(noted["trainyard.dev/node-hours"]) == pytest.approx(stored.node_seconds / 3600, abs=1e-4)
    assert float(noted["trainyard.dev/cost-usd"]) == pytest.approx(stored.usd, abs=1e-4)
    values = scraped(runner.metrics)
    assert value(values, "node_seconds_total", run="r1") == pytest.approx(stored.node_seconds, abs=0.1)
    assert value(values, "cost_usd_total", run="r1") == pytest.approx(stored.usd, abs=1e-3)


def test_end_without_the_lease_writes_no_usage(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a signal, requests to an API that does not answer would outlast the grace period."""
    runner, _ = hurried(api, asked())
    runner._memory = Memory(progress=dataclasses.replace(initial_progress(NOW), training_uid="uid"))
    runner._meter.usage = Usage(node_seconds=1.0)
    monkeypatch.setattr(runner.gateway, "annotate_training", lambda *_: pytest.fail("a request"))
    assert runner._end(End(code=names.EXIT_STOPPED, reason="stopped")) == names.EXIT_STOPPED


def test_long_event_keeps_its_end() -> None:
    message = "worker failed; " * 100 + "25.60 node-hours, 4% idle, about 838.94 USD"
    owner = manifests.Owner(name="launch-r1", uid="u")
    made = manifests.event(asked(), owner, now=NOW, kind="Warning", reason="LaunchFailed", message=message)
    assert made["message"].startswith("worker failed; ")
    assert made["message"].endswith("25.60 node-hours, 4% idle, about 838.94 USD")
    assert len(made["message"]) == 1000
