"""Assign loopback addresses and ports to clusters."""

from __future__ import annotations

import socket
from dataclasses import dataclass

CLUSTERS = 32
HTTPS = 443


@dataclass(frozen=True)
class ClusterNumber:
    """The number of a cluster on this machine, 0 to 31. It determines the cluster's loopback addresses."""

    value: int

    @property
    def service_cidr(self) -> str:
        """Addresses of Services."""
        return f"127.{64 + self.value}.0.0/16"

    @property
    def pod_cidr(self) -> str:
        """Addresses of pods."""
        return f"127.{96 + self.value}.0.0/16"

    @property
    def api_service(self) -> str:
        """Address of the Service `kubernetes`: the first one of the range."""
        return f"127.{64 + self.value}.0.1"


def claim_number() -> tuple[ClusterNumber, socket.socket]:
    """Reserve the first number whose address for the Kubernetes API, port 443, can be bound.

    No other local cloud of this network namespace gets it until the returned socket is closed: an abstract unix socket
    with a name from the number. The kernel keeps such names per network namespace, like the reserved addresses, and
    frees them with the process.

    Raises:
        RuntimeError: All numbers are in use.
    """
    reason: OSError | None = None
    for value in range(CLUSTERS):
        number = ClusterNumber(value)
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0trainyard-cluster-{value}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((number.api_service, HTTPS))
        except OSError as error:
            holder.close()
            reason = error
            continue
        return number, holder
    raise RuntimeError(f"none of 127.64.0.1:443 to 127.{63 + CLUSTERS}.0.1:443 can be bound: {reason}")
