"""Calls that run one after the other. moto iterates over dictionaries that a concurrent call would change meanwhile.

No call of these services waits for anything, so one lock serves all of them. Whatever changes their state outside of a
call takes the lock, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

# The tagging API reads the resources of the others.
SERVICES = ("ec2", "eks", "fsx", "iam", "resourcegroupstaggingapi")

lock = threading.RLock()


def later(seconds: float, change: Callable[[], object]) -> None:
    """Make a change of the account after the given number of seconds."""

    def make() -> None:
        with lock:
            change()

    timer = threading.Timer(seconds, make)
    timer.daemon = True
    timer.start()
