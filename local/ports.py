"""TCP ports that nothing has, for programs that are told theirs."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

# Below those that Linux gives to whoever connects (net.ipv4.ip_local_port_range, 32768 to 60999), which may be gone
# before the program that is told one has started; and without PyTorchJobs' 23456 and torchrun's 29500.
PORTS = range(24000, 29000)


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Different ports, none in `taken`, that no socket has on any of this machine's addresses.

    Raises:
        RuntimeError: there are not so many.
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
