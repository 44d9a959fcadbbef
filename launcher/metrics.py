"""What the launcher has counted, as Prometheus reads it: GET /metrics on a port of the pod."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from launcher.tally import Tally
from trainyard.k8s import names

log = logging.getLogger(__name__)

# One client at a time is served; one that says nothing, or takes nothing, does not keep the next waiting for longer.
# Prometheus itself gives up after 10 s (https://prometheus.io/docs/prometheus/latest/configuration/configuration/).
SILENT_SECONDS = 2.0


def families(tally: Tally) -> Iterator[Metric]:
    """Each metric with its value now. docs/monitoring.md has the table of them."""
    run, of_pool = {"run": tally.run}, {"run": tally.run, "pool": tally.pool}

    def gauge(name: str, told: str, value: float, labels: dict[str, str]) -> Metric:
        family = GaugeMetricFamily(f"trainyard_launcher_{name}", told, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def counter(name: str, told: str, value: float) -> Metric:
        family = CounterMetricFamily(f"trainyard_launcher_{name}", told, labels=list(run))
        family.add_metric(list(run.values()), value)
        return family

    yield gauge(
        "waiting", "1 while there is no training, in pauses and before a restart, too", tally.waiting, run
    )
    yield gauge("ready_nodes", "Nodes that can take a worker, or have one", tally.ready_nodes, of_pool)
    yield gauge("nodes_wanted", "Nodes that are asked for, or that train", tally.nodes_wanted, of_pool)
    yield counter("attempts", "Attempts begun", tally.attempts)
    yield counter("restarts", "Trainings that failed and were begun anew", tally.restarts)
    yield counter(
        "machines_given_back", "Machines given back as they never became of use", tally.machines_given_back
    )
    yield counter(
        "node_seconds_idle", "Seconds that usable nodes stood without a training", tally.idle_node_seconds
    )
    refused = CounterMetricFamily(
        "trainyard_launcher_insufficient_capacity",
        "Machines that EC2 refused, by its error code",
        labels=["run", "pool", "zone", "instance_type", "code"],
    )
    for kind, times in sorted(tally.refused.items()):
        refused.add_metric([tally.run, *kind], times)
    yield refused
    if tally.decision_seconds is not None:
        told = "From the last lists to the answer that the training is made"
        yield gauge("decision_seconds", told, tally.decision_seconds, of_pool)


class _Counts(Collector):
    """Reads the counts once per scrape, so that all values of an answer are of one step."""

    def __init__(self, read: Callable[[], Tally]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return families(self._read())


class MetricsServer(TCPServer):
    """Answers scrapes one after another, in one thread, so that no number of clients takes memory from the launcher.

    It is no `HTTPServer`: that one asks the name service for its own name, which may take long. Raises OSError where
    the address can't be had.
    """

    allow_reuse_address = True

    def __init__(self, read: Callable[[], Tally], host: str, port: int) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Counts(read))
        # In an IPv6 cluster, pods have IPv6 addresses only.
        if ":" in host or (not host and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Scrape)

    def server_bind(self) -> None:
        """Bind. The IPv6 wildcard address also accepts IPv4."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, *_: object) -> None:
        """A scrape that fails is the next one's business; a client that left is nobody's."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.warning("metrics: a scrape failed: %r", error)


class _Scrape(BaseHTTPRequestHandler):
    timeout = SILENT_SECONDS
    server: MetricsServer
    server_version, sys_version = names.MANAGED_BY, ""

    def do_GET(self) -> None:
        if urlsplit(self.path).path != names.METRICS_PATH:
            self.send_error(404)
            return
        data = generate_latest(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silent: a line per scrape would hide the launcher's own."""


def serve(read: Callable[[], Tally], host: str, port: int) -> MetricsServer | None:
    """Serves the metrics in a thread that ends with the process; None, and a warning, where that can't be."""
    try:
        server = MetricsServer(read, host, port)
    except OSError as error:
        log.warning(
            "no metrics: %s port %d can't be used: %s. Use an address of this pod and a free"
            " port. The run continues without metrics",
            host or "any address,",
            port,
            error,
        )
        return None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
