"""Find free TCP ports for programs that get their port as an argument. `free_ports` is the entry point."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

# Below the ephemeral ports of Linux (net.ipv4.ip_local_port_range, 32768 to 60999): a connection could take
# one before the program starts. Without 23456 of PyTorchJobs and 29500 of torchrun.
PORTS = range(24000, 29000)


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Return different ports, none in `taken`, that no socket uses on any address of this machine.

    Raises:
        RuntimeError: There are not enough.
    """
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(free) == count:
            break
        if port not in taken and _is_unused(port):
            free.append(port)
    if len(free) < count:
        raise RuntimeError(
            f"only {len(free)} of {count} ports are free from {PORTS.start} to {PORTS.stop - 1}"
        )
    return free


def _is_unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
