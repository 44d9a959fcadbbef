"""Linux namespaces of the local cloud. `options` returns those that this machine allows."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess

from local.cluster.record import Process

# In a PID namespace all processes end with the first one. --kill-child: the first one ends with unshare.
COMMON = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ROOT = COMMON
# An ordinary user can bind ports below 1024 only in their own network namespace.
USER = ("--user", "--map-root-user", "--net", *COMMON)

# netdevice(7)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
IFREQ = "16sh14x"


class NamespaceError(Exception):
    """This machine does not allow the namespaces that the local cloud needs. The message is one line."""


def options() -> tuple[str, ...]:
    """Return options of unshare(1) that work here.

    Raises:
        NamespaceError: None work.
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


def enter_prefix(supervisor: Process) -> list[str]:
    """Return the prefix of a command that must reach the cloud's addresses.

    It is empty if a command reaches them without one.
    """
    if os.readlink(f"/proc/{supervisor.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        return []
    return ["nsenter", f"--target={supervisor.pid}", "--user", "--preserve-credentials", "--net", "--"]


def bring_loopback_up() -> None:
    """Bring up `lo`, the only interface of a new network namespace.

    Raises:
        OSError: Not permitted.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack(IFREQ, b"lo", 0))
        flags = struct.unpack(IFREQ, answer)[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack(IFREQ, b"lo", flags | IFF_UP))
