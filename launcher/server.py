"""The HTTP servers of the launcher and the operator: their address, and the one for Prometheus."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

log = logging.getLogger(__name__)


def wildcard_address(environment: Mapping[str, str]) -> str:
    """Return the wildcard address of a pod. Network policies restrict the clients.

    A cluster has one IP family, that of its API server's address
    (https://docs.aws.amazon.com/eks/latest/userguide/cni-ipv6.html).
    """
    return "::" if ":" in environment.get("KUBERNETES_SERVICE_HOST", "") else "0.0.0.0"  # noqa: S104


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> WSGIServer:
    """Answer scrapes in a daemon thread. Raises OSError if the address is not available."""
    server, _ = start_http_server(port, host, registry)
    server.handle_error = log_failed_request  # type: ignore[method-assign]
    return server


def log_failed_request(request: object, client_address: object) -> None:
    """Log the error in one line. By default, a client that closes its connection early causes a traceback."""
    del request
    log.debug("a request from %s failed: %s", client_address, sys.exc_info()[1])
