"""The launcher's metrics, and GET /metrics for Prometheus. docs/monitoring.md lists them.

Each launcher process counts from its own start, as Prometheus expects: it does not repeat what an earlier launcher has
counted.
"""

from __future__ import annotations

import logging
from math import floor
from typing import TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from launcher.actions import Memory, Step
from launcher.capacity import target
from launcher.observe import Observation
from launcher.progress import Progress
from launcher.refusals import refusals
from launcher.request import Request
from launcher.server import serve_metrics
from trainyard.k8s import names

log = logging.getLogger(__name__)

_WITHOUT_TRAINING = frozenset(
    {names.STATE_WAITING, names.STATE_HOLDING, names.STATE_PAUSING, names.STATE_RESTARTING}
)
_ASKING = frozenset({names.STATE_WAITING, names.STATE_HOLDING})
# Before the first step of a run.
_NO_PROGRESS = Progress(attempt=0, candidate=0, since=0.0, began=0.0)
_Metric = TypeVar("_Metric", Counter, Gauge)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one launcher. The gauges with a pool describe the pool of the last observation."""

    def __init__(self, request: Request) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._request = request
        self._began: float | None = None  # the first observation, in seconds since the epoch
        self._counted_events: set[str] = set()
        self._pool = ""
        run = request.run_id
        self._waiting = self._add(
            Gauge, "waiting", "1 while no training job runs: waiting, holding, pausing or restarting"
        ).labels(run)
        self._ready_nodes = self._add(Gauge, "ready_nodes", "Nodes that can run a worker, or run one", "pool")
        self._nodes_wanted = self._add(
            Gauge, "nodes_wanted", "Requested nodes; after the submission, those of the job", "pool"
        )
        self._decision_seconds = self._add(
            Gauge,
            "decision_seconds",
            "Seconds from the last lists to the answer that the training job is created",
            "pool",
        )
        self._attempts = self._add(Counter, "attempts", "Attempts started").labels(run)
        self._restarts = self._add(Counter, "restarts", "Restarts after a failure").labels(run)
        self._released_nodes = self._add(
            Counter, "nodes_released", "NodeClaims deleted because their nodes were not usable in time"
        ).labels(run)
        self._idle_node_seconds = self._add(
            Counter, "node_seconds_idle", "Seconds without a training job, summed over usable nodes"
        ).labels(run)
        self._node_seconds = self._add(
            Counter, "node_seconds", "Seconds of all nodes with a placeholder or a worker of the run"
        ).labels(run)
        self._cost = self._add(
            Counter, "cost_usd", "Price of these seconds in USD, by Karpenter's estimates"
        ).labels(run)
        self._refused = self._add(
            Counter,
            "insufficient_capacity",
            "Refusals of EC2 by error code",
            *("pool", "zone", "instance_type", "code"),
        )
        self._show_pool(request.pool.name, 0, 0)

    def _add(self, kind: type[_Metric], name: str, description: str, *labels: str) -> _Metric:
        return kind(f"trainyard_launcher_{name}", description, ["run", *labels], registry=self.registry)

    def _show_pool(self, pool: str, ready_nodes: int, nodes_wanted: int) -> None:
        if pool != self._pool:
            self._pool = pool
            self._ready_nodes.clear()
            self._nodes_wanted.clear()
        self._ready_nodes.labels(self._request.run_id, pool).set(ready_nodes)
        self._nodes_wanted.labels(self._request.run_id, pool).set(nodes_wanted)

    def count_step(self, before: Memory, step: Step, seen: Observation) -> None:
        """Count a step from the memory `before` with this observation."""
        candidate, report = self._request.candidate(before.candidate_index), step.report
        wanted = target(candidate, seen) if report.state in _ASKING else report.nodes
        pausing = report.state == names.STATE_PAUSING
        self._show_pool(candidate.pool.name, report.nodes, 0 if pausing else wanted)
        self._waiting.set(report.state in _WITHOUT_TRAINING)
        old = before.progress or _NO_PROGRESS
        new = step.memory.progress or old
        # The idle node-seconds in the progress start at 0 in each attempt.
        idle_before = old.idle_node_seconds if _attempts(old) == _attempts(new) else 0.0
        for counter, added in (
            (self._attempts, _attempts(new) - _attempts(old)),
            (self._restarts, new.restarts - old.restarts),
            (self._released_nodes, len(new.released) - len(old.released)),
            (self._idle_node_seconds, new.idle_node_seconds - idle_before),
            (self._node_seconds, new.usage.node_seconds - old.usage.node_seconds),
            (self._cost, new.usage.usd - old.usage.usd),
        ):
            counter.inc(max(0, added))
        self._began = seen.now if self._began is None else self._began
        self._count_refusals(candidate, max((before.progress or new).began, self._began), seen)

    def count_decision(self, candidate: Request, seconds: float) -> None:
        """Note how long after the lists were read the training job was created."""
        self._decision_seconds.clear()
        self._decision_seconds.labels(self._request.run_id, candidate.pool.name).set(seconds)

    def _count_refusals(self, candidate: Request, since: float, seen: Observation) -> None:
        """Count the refusals of this wait that are not counted yet. A list may show the same Event again."""
        pool = candidate.pool
        for warning, code in refusals(candidate, seen.warnings, floor(since)):  # Events have whole seconds
            if warning.uid not in self._counted_events:
                self._counted_events.add(warning.uid)
                labels = (self._request.run_id, pool.name, pool.zone, pool.instance_type, code)
                self._refused.labels(*labels).inc()

    def serve(self, host: str, port: int) -> WSGIServer | None:
        """Answer scrapes in a daemon thread. If the address can't be used, log a warning and return None."""
        try:
            return serve_metrics(self.registry, host, port)
        except OSError as error:
            log.warning(
                "no metrics: %s port %d can't be used: %s. Use an address of this pod and a free"
                " port. The run continues without metrics",
                host,
                port,
                error,
            )
            return None


def _attempts(progress: Progress) -> int:
    """Return the number of started attempts. During a pause, the progress already has the next number."""
    return progress.attempt - (progress.pause_until is not None)
