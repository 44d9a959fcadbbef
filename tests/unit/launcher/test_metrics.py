"""The metrics of whole runs, read while they go, and the server that answers scrapes."""

from __future__ import annotations

import http.client
import logging
import re
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import closing

import pytest

from launcher import __main__ as program
from launcher import state_machine
from launcher.actions import Memory
from launcher.manifests import Owner, stamp
from launcher.metrics import Metrics
from launcher.observe import Observation
from launcher.progress import Progress
from launcher.request import Request
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi, until
from tests.unit.launcher.conftest import asked, fallback, made_for
from tests.unit.launcher.program import ROOT, Scraped, value
from tests.unit.launcher.test_lease import Clock, run_lease
from tests.unit.launcher.test_loop import JOB, hurried
from tests.unit.launcher.test_metrics_counters import refusal
from trainyard.k8s import kubeconfig, names

pytestmark = pytest.mark.unit

HOST = "127.0.0.1"
BEGAN = 1_800_000_000.0
SMALL = {"run": "r1", "pool": "small"}
REFUSED = {**SMALL, "zone": "us-west-2b", "instance_type": "g5.12xlarge"}
CAPACITY = "InsufficientInstanceCapacity"
# What happens at a moment, in seconds since the epoch.
Moment = Callable[[float], object]


def refuse(api: FakeApi, name: str, now: float, message: str = "InsufficientInstanceCapacity: none") -> None:
    item = cluster.put_warning(api, name, "small-x")
    api.put(f"{cluster.WARNINGS}/{name}", {**item, "message": message, "lastTimestamp": stamp(now)})


def scraped(metrics: Metrics) -> Scraped:
    """What a scrape has of these metrics."""
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def followed(
    api: FakeApi, request: Request, moments: dict[int, Moment], clock: Clock, holder: str = "pod-a"
) -> tuple[int, list[tuple[float, Scraped]]]:
    """Run the request, and call each of `moments` at its second; return the exit code and all scrapes."""
    scrapes: list[tuple[float, Scraped]] = []
    waiting = dict(moments)

    def scrape(now: float) -> None:
        scrapes.append((now - BEGAN, scraped(runner.metrics)))
        for after in [after for after in waiting if now - BEGAN >= after]:
            waiting.pop(after)(now)

    runner, _ = hurried(api, request, scrape, clock, holder)
    code = runner.run()
    scrapes.append((clock.now - BEGAN, scraped(runner.metrics)))
    return code, scrapes


def at(scrapes: list[tuple[float, Scraped]], moment: float) -> Scraped:
    """The last scrape up to this moment, in seconds from the beginning."""
    return [scraped for now, scraped in scrapes if now <= moment][-1]


def test_a_run_is_seen_from_its_wait_to_its_training(api: FakeApi) -> None:
    def succeed(now: float) -> None:
        training = f"{cluster.JOBS}/train-r1"
        status = {"conditions": [{"type": "Succeeded", "status": "True"}]}
        api.put(training, {**api.objects[training], "status": status})

    moments = {
        40: lambda now: cluster.put_node(api, "a"),
        80: lambda now: [cluster.put_node(api, name) for name in "bcd"],
        160: succeed,
    }
    code, scrapes = followed(api, asked(), moments, Clock())
    assert code == names.EXIT_SUCCEEDED
    first, second, following = at(scrapes, 40), at(scrapes, 80), at(scrapes, 150)
    assert [value(each, "waiting", run="r1") for each in (first, second, following)] == [1, 1, 0]
    assert [value(each, "ready_nodes", **SMALL) for each in (first, second)] == [0, 1]
    assert value(first, "nodes_wanted", **SMALL) == value(following, "nodes_wanted", **SMALL) == 4
    assert value(following, "ready_nodes", **SMALL) == 4
    assert value(second, "decision_seconds", **SMALL) is None
    took = value(following, "decision_seconds", **SMALL)
    assert took is not None
    assert 0 <= took < 10
    idle = value(following, "node_seconds_idle_total", run="r1")
    assert idle is not None
    assert 20 <= idle <= 60, "one machine for some 40 s"


def test_metrics_refusals_count_once_over_relists(api: FakeApi) -> None:
    def refuse_three(now: float) -> None:
        refuse(api, "one", now)
        refuse(api, "two", now)
        refuse(api, "vcpu", now, "VcpuLimitExceeded: 64")

    def change(now: float) -> None:
        item = api.objects[f"{cluster.WARNINGS}/one"]
        api.put(f"{cluster.WARNINGS}/one", {**item, "count": 2, "lastTimestamp": stamp(now)})

    def expire(now: float) -> None:
        lists = len(api.asked("list"))
        api.expire(tell=True)
        until(lambda: len(api.asked("list")) > lists)

    moments = {
        8: refuse_three,
        40: lambda now: api.drop(),
        80: expire,
        120: change,
        160: expire,
        200: lambda now: refuse(api, "three", now),
    }
    code, scrapes = followed(api, asked(), moments, Clock())
    assert code == names.EXIT_BELOW_MINIMUM
    counts = [value(each, "insufficient_capacity_total", **REFUSED, code=CAPACITY) for _, each in scrapes]
    assert [count for count in dict.fromkeys(counts) if count] in ([2, 3], [1, 2, 3])
    vcpu = {
        value(each, "insufficient_capacity_total", **REFUSED, code="VcpuLimitExceeded") for _, each in scrapes
    }
    assert vcpu == {None, 1}


def test_attempts_and_pools_are_counted_apart(api: FakeApi) -> None:
    pool = {"metadata": {"name": "large"}, "spec": {"limits": {"nvidia.com/gpu": "32"}}}
    api.put(f"{cluster.POOLS}/large", pool)
    request = asked(attempts=2, capacityDeadlineSeconds=40, fallbacks=[fallback()])
    code, scrapes = followed(api, request, {}, Clock())
    assert code == names.EXIT_BELOW_MINIMUM
    small, large, pause, again = at(scrapes, 30), at(scrapes, 120), at(scrapes, 300), at(scrapes, 430)
    assert value(small, "nodes_wanted", **SMALL) == 4
    assert value(small, "nodes_wanted", run="r1", pool="large") is None
    assert value(large, "nodes_wanted", run="r1", pool="large") == 4
    assert value(large, "nodes_wanted", **SMALL) is None
    assert value(pause, "nodes_wanted", **SMALL) == 0
    assert [value(each, "waiting", run="r1") for each in (small, large, pause, again)] == [1] * 4
    assert [value(each, "attempts_total", run="r1") for each in (small, large, pause, again)] == [1, 1, 1, 2]
    assert value(scrapes[-1][1], "waiting", run="r1") == 0


def test_metrics_node_released_twice_counts_once(api: FakeApi) -> None:
    path = f"{cluster.CLAIMS}/small-x"
    deleted: list[str] = []
    api.on_request = lambda method, asked: deleted.append(asked) if method == "DELETE" else None

    def come(now: float) -> None:
        """A NodeClaim whose machine never has its devices, each time the same."""
        cluster.put_node(api, "n", status__allocatable={"cpu": "47", "memory": "180Gi"})
        labels = {"karpenter.sh/nodepool": "small"}
        meta = {"name": "small-x", "uid": "u", "labels": labels, "creationTimestamp": stamp(BEGAN + 4)}
        api.put(path, {"metadata": meta, "spec": made_for(), "status": {"nodeName": "n"}})

    request = asked(nodeStartSeconds=60, capacityDeadlineSeconds=100)
    code, scrapes = followed(api, request, {4: come, 76: come}, Clock())
    assert deleted.count(path) == 2
    assert code == names.EXIT_BELOW_MINIMUM
    counts = [value(each, "nodes_released_total", run="r1") for _, each in scrapes]
    assert list(dict.fromkeys(counts)) == [0, 1]


def test_metrics_of_next_launcher_start_at_zero(api: FakeApi) -> None:
    clock = Clock()
    dead = run_lease(api, "pod-a", clock, Owner(name="launch-r1", uid=api.objects[JOB]["metadata"]["uid"]))
    dead.take()
    dead.write(Progress(attempt=2, candidate=0, since=clock.now - 900, began=clock.now - 100))
    refuse(api, "before", clock.now - 50)
    moments = {60: lambda now: refuse(api, "own", now)}
    code, scrapes = followed(api, asked(attempts=2), moments, clock, "pod-b")
    assert code == names.EXIT_BELOW_MINIMUM
    last = scrapes[-1][1]
    assert value(last, "attempts_total", run="r1") == 0
    assert value(last, "insufficient_capacity_total", **REFUSED, code=CAPACITY) == 1
    assert value(scrapes[0][1], "waiting", run="r1") == 0, "it has no Lease yet"


def test_the_page_has_each_metric_with_its_kind_and_labels() -> None:
    every = Metrics(asked())
    every.count_decision(asked(), 1.0)
    waiting = Observation(now=BEGAN, fresh=True, warnings=(refusal("a", BEGAN),))
    every.count_step(Memory(), state_machine.step(asked(), Memory(), waiting), waiting)
    served_ = {
        sample.name: (family.type, set(sample.labels))
        for family in every.registry.collect()
        for sample in family.samples
    }
    row = re.compile(r"^\| `(trainyard_launcher_\w+)` \| (\w+) \| ([^|]+) \|", re.MULTILINE)
    page = row.findall((ROOT / "docs" / "monitoring.md").read_text())
    assert {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in page} == served_


# -- the server


@pytest.mark.parametrize("host", ["192.0.2.1", "no address"])
def test_an_address_that_cant_be_had_is_one_warning(
    request_: Request, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    assert Metrics(request_).serve(host, 0) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"no metrics: {host} port 0 can't be used: ")


def test_run_with_used_metrics_port_warns(
    api: FakeApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "127.83.0.2"
    monkeypatch.setattr(kubeconfig, "connect_in_pod_or_outside", api.client)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    request = asked(capacityDeadlineSeconds=1)
    api.objects[f"{cluster.POOLS}/small"]["spec"]["limits"]["nvidia.com/gpu"] = "4"
    with socket.create_server((address, names.METRICS_PORT)):
        assert program.run(request, "launch-r1", "pod-a", address) == names.EXIT_IMPOSSIBLE
    (warning,) = (record for record in caplog.records if "metrics" in record.getMessage())
    assert warning.levelno == logging.WARNING
    assert warning.getMessage().startswith(f"no metrics: {address} port {names.METRICS_PORT} can't be used: ")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_metrics_are_served_on_both_families(request_: Request, address: str) -> None:
    server = Metrics(request_).serve("::", 0)
    assert server is not None
    try:
        with closing(http.client.HTTPConnection(address, server.server_address[1], timeout=10)) as connection:
            connection.request("GET", names.METRICS_PATH)
            assert connection.getresponse().status == 200
    finally:
        server.shutdown()
        server.server_close()


def test_metrics_client_that_resets_is_no_traceback(
    request_: Request, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "launcher.server")
    server = Metrics(request_).serve(HOST, 0)
    assert server is not None
    try:
        with socket.create_connection((HOST, server.server_address[1])) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: "a request from" in caplog.text)
    finally:
        server.shutdown()
        server.server_close()
    assert "Connection reset" in caplog.text
    assert capfd.readouterr().err == ""
