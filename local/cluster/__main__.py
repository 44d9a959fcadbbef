"""`python -m local.cluster`: the supervisor. `python -m local up` starts it in namespaces of its own."""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import signal
import sys
from pathlib import Path

from local.cluster.namespaces import bring_loopback_up
from local.cluster.record import parse_stat
from local.cluster.supervisor import StartError, Supervisor, report
from local.home import Home


def main() -> int:
    """Run until a signal or a request to stop. Errors are one line, which `up` shows."""
    parser = argparse.ArgumentParser(prog="python -m local.cluster", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True, help="port of the AWS emulator")
    parser.add_argument("--private-network", action="store_true", help="the network namespace is new")
    parser.add_argument("--outer", required=True, help="line of /proc/<pid>/stat of the process to end")
    arguments = parser.parse_args()
    home = Home(arguments.home)
    outer = parse_stat(arguments.outer)
    try:
        home.make()
        lock = os.open(home.run / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"error: another local cloud is running in {home.root}")
            return 1
        if arguments.private_network:
            bring_loopback_up()
        supervisor = Supervisor(home, outer, arguments.port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.shut_down())
        supervisor.run()
    except StartError as error:
        report(f"error: {error}")
        return 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            report(f"error: the disk of {home.root} is full: free some space and start again")
        else:
            report(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
