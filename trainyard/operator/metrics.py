"""The Prometheus metrics of the controller, and its liveness endpoint. docs/torchrun.md lists the metrics."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from launcher.server import log_failed_request, serve_metrics
from trainyard.operator import names as n

_PREFIX = "trainyard_torchrun_"
_RECONCILE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)
        self._jobs = Gauge(f"{_PREFIX}jobs", "TorchrunJobs by phase", ["phase"], registry=registry)
        help_text = "Jobs and queues that wait for a reconcile, or are in one"
        self._waiting = Gauge(f"{_PREFIX}waiting", help_text, registry=registry)
        self._durations = Histogram(
            f"{_PREFIX}reconcile_seconds",
            "Seconds of a reconcile of a job or a queue",
            ["kind"],
            buckets=_RECONCILE_SECONDS,
            registry=registry,
        )
        help_text = "Reconciles that failed and are retried"
        self._failures = Counter(f"{_PREFIX}reconcile_failures", help_text, ["kind"], registry=registry)
        for kind in (n.JOB_KIND, n.QUEUE_KIND):
            self._failures.labels(kind)

    def count(self, phases: Callable[[], Mapping[str, int]], waiting: Callable[[], int]) -> None:
        """Count at each scrape: the jobs by their phase, and the jobs and queues that wait or are in a reconcile.

        The phase "" is that of a job without a status, which counts as Pending.
        """

        def jobs(phase: str) -> int:
            found = phases()
            return found.get(phase, 0) + (found.get("", 0) if phase == n.PHASE_PENDING else 0)

        for phase in n.PHASES:
            self._jobs.labels(phase).set_function(partial(jobs, phase))
        self._waiting.set_function(waiting)

    @contextmanager
    def reconcile(self, kind: str) -> Iterator[None]:
        """Measure one reconcile."""
        began = time.monotonic()
        try:
            yield
        except Exception:
            self._failures.labels(kind).inc()
            raise
        finally:
            self._durations.labels(kind).observe(time.monotonic() - began)

    def serve(self, host: str, port: int) -> WSGIServer:
        """Answer scrapes in a daemon thread. Raises OSError if the address is not available."""
        return serve_metrics(self._registry, host, port)


def serve_liveness(
    host: str, port: int, silent_seconds: Callable[[], float], limit: float, died: Callable[[], list[str]]
) -> ThreadingHTTPServer:
    """Answer the kubelet's liveness probe in a daemon thread. Raises OSError if the address is not available.

    The status is 500 if no reconcile ended within the limit, or if the watch of a kind died.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != n.LIVENESS_PATH:
                self.send_error(404)
                return
            silent, ended = silent_seconds(), died()
            state = {"reconciles": f"the last reconcile ended {silent:.0f} s ago"}
            state["watches"] = f"ended: {', '.join(ended)}" if ended else "running"
            body = json.dumps(state).encode()
            self.send_response(200 if silent <= limit and not ended else 500)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no probes."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    server = Server((host, port), Handler)
    server.handle_error = log_failed_request  # type: ignore[method-assign]
    Thread(target=server.serve_forever, name="liveness", daemon=True).start()
    return server
