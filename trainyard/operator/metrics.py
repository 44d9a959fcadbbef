"""What the controller has counted, as Prometheus reads it. docs/torchrun.md has the table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from trainyard.operator import names as n

_LOOK_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """All methods may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)

        def named(name: str) -> str:
            return f"trainyard_torchrun_{name}"

        self._jobs = Gauge(named("jobs"), "TorchrunJobs by phase", ["phase"], registry=self._registry)
        self._waiting = Gauge(
            named("waiting"), "Jobs and queues that are to be looked at, or are", registry=self._registry
        )
        self._looks = Histogram(
            named("look_seconds"),
            "Seconds of one look at a job or a queue",
            ["kind"],
            buckets=_LOOK_SECONDS,
            registry=self._registry,
        )
        self._failures = Counter(
            named("look_failures"), "Looks that failed and are tried again", ["kind"], registry=self._registry
        )
        for kind in (n.JOB_KIND, n.QUEUE_KIND):
            self._failures.labels(kind)

    def jobs(self, phases: Mapping[str, int]) -> None:
        """How many jobs are in each phase; "" is one that nobody has looked at yet, and it counts as Pending."""
        for phase in n.PHASES:
            more = phases.get("", 0) if phase == n.PHASE_PENDING else 0
            self._jobs.labels(phase).set(phases.get(phase, 0) + more)

    def waiting(self, count: int) -> None:
        """How many jobs and queues are to be looked at by now, or are looked at."""
        self._waiting.set(count)

    @contextmanager
    def look(self, kind: str) -> Iterator[None]:
        """Measures one look."""
        began = time.monotonic()
        try:
            yield
        except Exception:
            self._failures.labels(kind).inc()
            raise
        finally:
            self._looks.labels(kind).observe(time.monotonic() - began)

    def serve(self, host: str, port: int) -> WSGIServer:
        """Answers scrapes in a thread that ends with the process. Raises OSError where the address can't be had."""
        server, _ = start_http_server(port, host, self._registry)
        return server
