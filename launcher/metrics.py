"""The launcher's counters, and GET /metrics for Prometheus.

Each launcher process counts from its own start, as Prometheus expects: it does not repeat what an earlier launcher has
counted.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from math import floor
from socketserver import TCPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from launcher.actions import Memory, Step
from launcher.capacity import target
from launcher.observe import Observation
from launcher.progress import Progress, Usage
from launcher.refusals import refusals
from launcher.request import Request
from trainyard.k8s import names

log = logging.getLogger(__name__)

# The timeout of a client that sends or reads nothing; the next client waits for it. Prometheus gives up after 10 s
# (https://prometheus.io/docs/prometheus/latest/configuration/configuration/).
SILENT_SECONDS = 2.0


def families(counters: Counters) -> Iterator[Metric]:
    """Yield each metric with its present value. docs/monitoring.md lists them."""
    run, of_pool = {"run": counters.run}, {"run": counters.run, "pool": counters.pool}

    def gauge(name: str, description: str, value: float, labels: dict[str, str]) -> Metric:
        family = GaugeMetricFamily(f"trainyard_launcher_{name}", description, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def counter(name: str, description: str, value: float) -> Metric:
        family = CounterMetricFamily(f"trainyard_launcher_{name}", description, labels=list(run))
        family.add_metric(list(run.values()), value)
        return family

    yield gauge(
        "waiting",
        "1 while no training job runs: waiting, holding, pausing or restarting",
        counters.waiting,
        run,
    )
    yield gauge("ready_nodes", "Nodes that can run a worker, or run one", counters.ready_nodes, of_pool)
    yield gauge(
        "nodes_wanted",
        "Requested nodes; after the submission, those of the job",
        counters.nodes_wanted,
        of_pool,
    )
    yield counter("attempts", "Attempts started", counters.attempts)
    yield counter("restarts", "Restarts after a failure", counters.restarts)
    yield counter(
        "machines_given_back",
        "NodeClaims deleted because their nodes were not usable in time",
        counters.released_nodes,
    )
    yield counter(
        "node_seconds_idle",
        "Seconds without a training job, summed over usable nodes",
        counters.idle_node_seconds,
    )
    yield counter(
        "node_seconds",
        "Seconds of all nodes with a placeholder or a worker of the run",
        counters.node_seconds,
    )
    yield counter("cost_usd", "Price of these seconds in USD, by Karpenter's estimates", counters.usd)
    refused = CounterMetricFamily(
        "trainyard_launcher_insufficient_capacity",
        "Refusals of EC2 by error code",
        labels=["run", "pool", "zone", "instance_type", "code"],
    )
    for kind, times in sorted(counters.refused.items()):
        refused.add_metric([counters.run, *kind], times)
    yield refused
    if counters.decision_seconds is not None:
        description = "Seconds from the last lists to the answer that the training job is created"
        yield gauge("decision_seconds", description, counters.decision_seconds, of_pool)


class _Counts(Collector):
    """Collect the counters once per scrape, so that all values of an answer are from one step."""

    def __init__(self, read: Callable[[], Counters]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return families(self._read())


class MetricsServer(TCPServer):
    """An HTTP server for scrapes. It uses one thread, so that many clients can't exhaust the launcher's memory.

    It is not an `HTTPServer`, because that class resolves its own name by DNS, which may be slow. The constructor
    raises OSError if the address can't be used.
    """

    allow_reuse_address = True

    def __init__(self, read: Callable[[], Counters], host: str, port: int) -> None:
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
        """Log a warning, except for clients that closed the connection."""
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
        """Log nothing: a line per scrape would hide the launcher's own lines."""


def serve(read: Callable[[], Counters], host: str, port: int) -> MetricsServer | None:
    """Serve the metrics in a daemon thread. If the address can't be used, log a warning and return None."""
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


# The uid of an Event is kept while the Event is listed, and this long: some lists come from the API server's cache,
# which may be older than the watches.
REMEMBERED_SECONDS = 7200.0
_WITHOUT_TRAINING = frozenset(
    {names.STATE_WAITING, names.STATE_HOLDING, names.STATE_PAUSING, names.STATE_RESTARTING}
)
_ASKING = frozenset({names.STATE_WAITING, names.STATE_HOLDING})


class Refusal(NamedTuple):
    """An instance type that EC2 refused, the place, and the error code."""

    pool: str
    zone: str
    instance_type: str
    code: str


@dataclass(frozen=True, kw_only=True)
class Counters:
    """The counters and gauges of one launcher.

    Attributes:
        pool: The pool of the last observation. `ready_nodes` and `nodes_wanted` describe this pool.
        decision_seconds: The time from the fresh lists to the creation of the PyTorchJob; None before.
        began: The time of the first observation, in seconds since the epoch.
        counted_events: The Events in `refused`, by uid, with their times.
    """

    run: str
    pool: str
    waiting: bool = False
    ready_nodes: int = 0
    nodes_wanted: int = 0
    attempts: int = 0
    restarts: int = 0
    released_nodes: int = 0
    idle_node_seconds: float = 0.0
    node_seconds: float = 0.0
    usd: float = 0.0
    decision_seconds: float | None = None
    refused: Mapping[Refusal, int] = field(default_factory=dict)
    began: float | None = None
    counted_events: Mapping[str, float] = field(default_factory=dict)


def new_counters(request: Request) -> Counters:
    """Return the counters before the first observation."""
    return Counters(run=request.run_id, pool=request.pool.name)


def count_step(
    counters: Counters, request: Request, before: Memory, step: Step, seen: Observation
) -> Counters:
    """Return the counters after a step from the memory `before` with this observation."""
    candidate, report = request.candidate(before.candidate), step.report
    wanted = target(candidate, seen) if report.state in _ASKING else report.nodes
    used, after = _usage(before.progress), _usage(step.memory.progress or before.progress)
    counters = replace(
        counters,
        pool=candidate.pool.name,
        waiting=report.state in _WITHOUT_TRAINING,
        ready_nodes=report.nodes,
        nodes_wanted=0 if report.state == names.STATE_PAUSING else wanted,
        attempts=counters.attempts + _attempts(step.memory.progress) - _attempts(before.progress),
        restarts=counters.restarts + _restarts(step.memory.progress) - _restarts(before.progress),
        released_nodes=counters.released_nodes + _released(step.memory.progress) - _released(before.progress),
        idle_node_seconds=counters.idle_node_seconds + _idle(before.progress, step.memory.progress),
        node_seconds=counters.node_seconds + after.node_seconds - used.node_seconds,
        usd=counters.usd + after.usd - used.usd,
        began=seen.now if counters.began is None else counters.began,
    )
    return _refused(counters, candidate, before.progress or step.memory.progress, seen)


def count_decision(counters: Counters, seconds: float) -> Counters:
    """Return the counters after a PyTorchJob was created, this many seconds after the lists were read."""
    return replace(counters, decision_seconds=seconds)


def _attempts(progress: Progress | None) -> int:
    """Return the number of started attempts. During a pause, the progress already has the next number."""
    return 0 if progress is None else progress.attempt - (progress.resumes is not None)


def _usage(progress: Progress | None) -> Usage:
    return Usage() if progress is None else progress.usage


def _restarts(progress: Progress | None) -> int:
    return 0 if progress is None else progress.restarts


def _released(progress: Progress | None) -> int:
    return 0 if progress is None else len(progress.released)


def _idle(before: Progress | None, after: Progress | None) -> float:
    """Return the idle node-seconds of this step. Those in the progress start at 0 in each attempt."""
    if after is None:
        return 0.0
    same = before is not None and _attempts(before) == _attempts(after)
    return after.idle_node_seconds - (before.idle_node_seconds if before is not None and same else 0.0)


def _refused(
    counters: Counters, candidate: Request, progress: Progress | None, seen: Observation
) -> Counters:
    """Add the refusals of this wait that are not counted yet."""
    if progress is None or counters.began is None:
        return counters
    # Events have whole seconds, rounded down.
    since = floor(max(progress.began, counters.began))
    there = {warning.uid: (warning, code) for warning, code in refusals(candidate, seen.warnings, since)}
    if there.keys() <= counters.counted_events.keys():
        return counters
    refused = dict(counters.refused)
    pool = candidate.pool
    for uid in there.keys() - counters.counted_events.keys():
        kind = Refusal(pool=pool.name, zone=pool.zone, instance_type=pool.instance_type, code=there[uid][1])
        refused[kind] = refused.get(kind, 0) + 1
    oldest = seen.now - REMEMBERED_SECONDS
    kept = {uid: at for uid, at in counters.counted_events.items() if at > oldest}
    return replace(
        counters,
        refused=refused,
        counted_events={**kept, **{uid: warning.at for uid, (warning, _) in there.items()}},
    )
