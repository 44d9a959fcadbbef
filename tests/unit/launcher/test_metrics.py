"""The metrics of whole runs, read while they go, and the server that answers scrapes."""

from __future__ import annotations

import http.client
import logging
import re
import signal
import socket
import struct
from contextlib import closing

import pytest

from launcher import __main__ as program
from launcher import state_machine
from launcher.actions import Memory
from launcher.metrics import Metrics
from launcher.observe import Observation
from launcher.request import Request
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi, until
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.program import ROOT, Scraped, value
from tests.unit.launcher.test_loop import hurried
from tests.unit.launcher.test_metrics_counters import refusal
from trainyard.k8s import kubeconfig, names

HOST = "127.0.0.1"
BEGAN = 1_800_000_000.0
SMALL = {"run": "r1", "pool": "small"}


def scraped(metrics: Metrics) -> Scraped:
    """What a scrape has of these metrics."""
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def test_a_run_is_seen_from_its_wait_to_its_training(api: FakeApi) -> None:
    moments = {40: "a", 80: "bcd"}
    scrapes: list[tuple[float, Scraped]] = []

    def go(now: float) -> None:
        scrapes.append((now - BEGAN, scraped(runner.metrics)))
        for moment, nodes in moments.items():
            if now - BEGAN >= moment:
                for name in nodes:
                    cluster.put_node(api, name)
        if now - BEGAN >= 160:
            status = {"conditions": [{"type": "Succeeded", "status": "True"}]}
            api.put(f"{cluster.JOBS}/train-r1", {**api.objects[f"{cluster.JOBS}/train-r1"], "status": status})

    def at(moment: float) -> Scraped:
        return [each for now, each in scrapes if now <= moment][-1]

    runner, _ = hurried(api, asked(), go)
    assert runner.run() == names.EXIT_SUCCEEDED
    first, second, following = at(40), at(80), at(150)
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
