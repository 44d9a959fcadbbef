"""The namespaces of the local cloud: which this machine lets us make, and how to enter them."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess

from local.cluster.record import Process

# One PID namespace: the end of its first process is the end of all. --kill-child: the end of unshare is its end.
COMMON = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ROOT = COMMON
# An ordinary user may bind no port below 1024 outside a network namespace of their own.
USER = ("--user", "--map-root-user", "--net", *COMMON)

# netdevice(7)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
IFREQ = "16sh14x"


class NamespaceError(Exception):
    """This machine allows none of the namespaces that the local cloud needs; one line."""


def options() -> tuple[str, ...]:
    """Options of unshare(1) that work here.

    Raises:
        NamespaceError: none do.
    """
    if shutil.which("unshare") is None:
        raise NamespaceError("unshare is missing: install util-linux")
    reason = ""
    for candidate in (ROOT, USER) if os.geteuid() == 0 else (USER,):
        result = subprocess.run(["unshare", *candidate, "true"], capture_output=True, text=True)
        if result.returncode == 0:
            return candidate
        reason = " ".join(result.stderr.split())
    raise NamespaceError(
        "the local cloud needs PID and mount namespaces: run it as root, or allow user namespaces "
        f"(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns); {reason}"
    )


def is_private(chosen: tuple[str, ...]) -> bool:
    """Whether the network of the cloud is not that of this machine."""
    return "--net" in chosen


def enter_prefix(supervisor: Process) -> list[str]:
    """What to put before a command so that it reaches the cloud's addresses; empty where it reaches them anyway."""
    if os.readlink(f"/proc/{supervisor.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        return []
    return ["nsenter", f"--target={supervisor.pid}", "--user", "--preserve-credentials", "--net", "--"]


def bring_loopback_up() -> None:
    """Switch on `lo` of a new network namespace, which has nothing else.

    Raises:
        OSError: not permitted.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack(IFREQ, b"lo", 0))
        flags = struct.unpack(IFREQ, answer)[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack(IFREQ, b"lo", flags | IFF_UP))
