"""Addresses and ports of loopback that clusters are given."""

from __future__ import annotations

import socket
from dataclasses import dataclass

CLUSTERS = 32
HTTPS = 443


@dataclass(frozen=True)
class ClusterNumber:
    """Number of a cluster on this machine, 0 to 31: it decides on the loopback addresses that the cluster uses."""

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
        """Address of the Service `kubernetes`: the first of the range."""
        return f"127.{64 + self.value}.0.1"


class Claim:
    """A number that no other local cloud on this machine's network takes while this object is open.

    An abstract unix socket is bound under the number's name: the kernel keeps such names per network namespace, as
    it does the addresses that are claimed, and frees them with the process.
    """

    def __init__(self, number: ClusterNumber, holder: socket.socket) -> None:
        self.number = number
        self._holder = holder

    def close(self) -> None:
        """Let others have the number."""
        self._holder.close()


def claim_number() -> Claim:
    """Claim the first number whose address for the Kubernetes API, port 443, can be bound.

    Raises:
        RuntimeError: all are taken.
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
        return Claim(number, holder)
    raise RuntimeError(f"none of 127.64.0.1:443 to 127.{63 + CLUSTERS}.0.1:443 can be bound: {reason}")


def is_free(port: int) -> bool:
    """Whether a TCP port of 127.0.0.1 can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
