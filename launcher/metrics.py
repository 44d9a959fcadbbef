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
from launcher.progress import Progress
from launcher.refusals import refusals
from launcher.request import Request
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


# An Event's uid is remembered for as long as it is seen, and this long: the API server's cache, from which some lists
# come, may be older than what a watch has told.
REMEMBERED_SECONDS = 7200.0
_WITHOUT_TRAINING = frozenset(
    {names.STATE_WAITING, names.STATE_HOLDING, names.STATE_PAUSING, names.STATE_RESTARTING}
)
_ASKING = frozenset({names.STATE_WAITING, names.STATE_HOLDING})


class Refusal(NamedTuple):
    """What EC2 refused: the machine, where, and with which error code."""

    pool: str
    zone: str
    instance_type: str
    code: str


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The counts of one launcher.

    `ready_nodes` and `nodes_wanted` are of `pool`, the one that the last observation was of. `decision_seconds` is the
    time from the fresh lists to the answer that the PyTorchJob is made, None before. `began` is when the first
    observation was made, in seconds since the epoch, and `known` has the Events that were counted, by uid, with their
    times.
    """

    run: str
    pool: str
    waiting: bool = False
    ready_nodes: int = 0
    nodes_wanted: int = 0
    attempts: int = 0
    restarts: int = 0
    machines_given_back: int = 0
    idle_node_seconds: float = 0.0
    decision_seconds: float | None = None
    refused: Mapping[Refusal, int] = field(default_factory=dict)
    began: float | None = None
    known: Mapping[str, float] = field(default_factory=dict)


def nothing(request: Request) -> Tally:
    """Before the first observation."""
    return Tally(run=request.run_id, pool=request.pool.name)


def stepped(tally: Tally, request: Request, before: Memory, step: Step, seen: Observation) -> Tally:
    """The counts after a step that was taken from `before`, when this was seen."""
    candidate, report = request.candidate(before.candidate), step.report
    wanted = target(candidate, seen) if report.state in _ASKING else report.nodes
    tally = replace(
        tally,
        pool=candidate.pool.name,
        waiting=report.state in _WITHOUT_TRAINING,
        ready_nodes=report.nodes,
        nodes_wanted=0 if report.state == names.STATE_PAUSING else wanted,
        attempts=tally.attempts + _begun(step.memory.progress) - _begun(before.progress),
        restarts=tally.restarts + _restarts(step.memory.progress) - _restarts(before.progress),
        machines_given_back=tally.machines_given_back
        + _given_back(step.memory.progress)
        - _given_back(before.progress),
        idle_node_seconds=tally.idle_node_seconds + _idle(before.progress, step.memory.progress),
        began=seen.now if tally.began is None else tally.began,
    )
    return _refused(tally, candidate, before.progress or step.memory.progress, seen)


def decided(tally: Tally, seconds: float) -> Tally:
    """The counts after a training was asked for, this long after the lists were read."""
    return replace(tally, decision_seconds=seconds)


def _begun(progress: Progress | None) -> int:
    """How many attempts have begun; in a pause the next one is noted already."""
    return 0 if progress is None else progress.attempt - (progress.resumes is not None)


def _restarts(progress: Progress | None) -> int:
    return 0 if progress is None else progress.restarts


def _given_back(progress: Progress | None) -> int:
    return 0 if progress is None else len(progress.given_back)


def _idle(before: Progress | None, after: Progress | None) -> float:
    """Node-seconds of this step. The progress has those of its attempt, and begins each one with none."""
    if after is None:
        return 0.0
    same = before is not None and _begun(before) == _begun(after)
    return after.idle_node_seconds - (before.idle_node_seconds if before is not None and same else 0.0)


def _refused(tally: Tally, candidate: Request, progress: Progress | None, seen: Observation) -> Tally:
    """Adds the refusals of this wait that are not counted yet."""
    if progress is None or tally.began is None:
        return tally
    # Events have whole seconds, cut off.
    since = floor(max(progress.began, tally.began))
    there = {warning.uid: (warning, code) for warning, code in refusals(candidate, seen.warnings, since)}
    if there.keys() <= tally.known.keys():
        return tally
    refused = dict(tally.refused)
    pool = candidate.pool
    for uid in there.keys() - tally.known.keys():
        kind = Refusal(pool=pool.name, zone=pool.zone, instance_type=pool.instance_type, code=there[uid][1])
        refused[kind] = refused.get(kind, 0) + 1
    oldest = seen.now - REMEMBERED_SECONDS
    kept = {uid: at for uid, at in tally.known.items() if at > oldest}
    return replace(
        tally, refused=refused, known={**kept, **{uid: warning.at for uid, (warning, _) in there.items()}}
    )
